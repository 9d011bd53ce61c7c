//! What kind of no an error of a server is.

use crate::error::{Refusal, TierError};

/// The kind of an error, by its code, the first word of its line, and the other words.
///
/// Up to Redis 6.2 what goes wrong within a script has the code `ERR`, and its own among the words.
///
/// ```
/// use onefill::Refusal;
/// use onefill::fleet::redis::refusal;
///
/// assert_eq!(refusal("OOM", "command not allowed"), Refusal::OutOfMemory);
/// let text = "Error running script (call to f_0): @user_script:5: @user_script: 5: -OOM command";
/// assert_eq!(refusal("ERR", text), Refusal::OutOfMemory);
/// ```
pub fn refusal(code: &str, text: &str) -> Refusal {
    if let Some(class) = by_code(code) {
        return class;
    }
    if code != "ERR" {
        return Refusal::Other;
    }
    if text.starts_with("ACL failure in script")
        || text.contains("The user executing the script can't")
    {
        return Refusal::Denied;
    }
    if !text.starts_with("Error running script") {
        return Refusal::Other;
    }
    text.split_ascii_whitespace()
        .find_map(|word| by_code(word.trim_start_matches('-')))
        .unwrap_or(Refusal::Other)
}

fn by_code(code: &str) -> Option<Refusal> {
    Some(match code {
        "OOM" => Refusal::OutOfMemory,
        "READONLY" => Refusal::ReadOnly,
        "MISCONF" => Refusal::NotPersisting,
        "NOREPLICAS" => Refusal::TooFewReplicas,
        "LOADING" => Refusal::Loading,
        "BUSY" => Refusal::Busy,
        // The keys of a slot that is on its way to another node are not all in one place yet.
        "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => Refusal::Incomplete,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => Refusal::Denied,
        "MOVED" | "ASK" | "CROSSSLOT" => Refusal::Misrouted,
        "WRONGTYPE" => Refusal::WrongType,
        _ => return None,
    })
}

/// The error that an error of a server comes to.
pub(crate) fn refused(code: &str, text: &str) -> TierError {
    let class = refusal(code, text);
    let space = if text.is_empty() { "" } else { " " };
    let hint = match code {
        "MOVED" | "ASK" => "; the server is a node of a cluster: use redis-cluster:// for it",
        _ => "",
    };
    TierError::Refused { class, text: format!("{code}{space}{text}{hint}") }
}

/// Whether it is the last that a server says over a connection. It is not about the command.
pub(super) fn is_farewell(code: &str, text: &str) -> bool {
    code == "ERR" && text.starts_with("max number of clients")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_kind() {
        let script = |error| format!("Error running script (call to f_0): @user_script:5: {error}");
        let errors = [
            ("OOM", "command not allowed when used memory > 'maxmemory'.", Refusal::OutOfMemory),
            ("READONLY", "You can't write against a read only replica.", Refusal::ReadOnly),
            ("MISCONF", "Redis is configured to save RDB snapshots", Refusal::NotPersisting),
            ("NOREPLICAS", "Not enough good replicas to write.", Refusal::TooFewReplicas),
            ("LOADING", "Redis is loading the dataset in memory", Refusal::Loading),
            ("BUSY", "Redis is busy running a script.", Refusal::Busy),
            ("MASTERDOWN", "Link with MASTER is down", Refusal::Incomplete),
            ("CLUSTERDOWN", "Hash slot not served", Refusal::Incomplete),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot", Refusal::Incomplete),
            ("NOAUTH", "Authentication required.", Refusal::Denied),
            ("WRONGPASS", "invalid username-password pair", Refusal::Denied),
            ("NOPERM", "this user has no permissions", Refusal::Denied),
            ("DENIED", "Redis is running in protected mode", Refusal::Denied),
            ("MOVED", "3999 127.0.0.1:6381", Refusal::Misrouted),
            ("ASK", "3999 127.0.0.1:6381", Refusal::Misrouted),
            ("CROSSSLOT", "Keys in request don't hash to the same slot", Refusal::Misrouted),
            ("WRONGTYPE", "Operation against a key", Refusal::WrongType),
            ("NOSCRIPT", "No matching script.", Refusal::Other),
            ("ERR", "unknown command 'OOM'", Refusal::Other),
            ("ERR", &script("@user_script: 5: -OOM command not allowed"), Refusal::OutOfMemory),
            ("ERR", &script("-READONLY You can't write"), Refusal::ReadOnly),
            ("ERR", &script("-MISCONF Redis is configured"), Refusal::NotPersisting),
            ("ERR", &script("WRONGTYPE Operation against"), Refusal::WrongType),
            ("ERR", &script("attempt to index a nil value"), Refusal::Other),
            ("ERR", "ACL failure in script: User app has no permissions", Refusal::Denied),
            ("ERR", &script("The user executing the script can't run this"), Refusal::Denied),
        ];
        for (code, text, kind) in errors {
            assert_eq!(refusal(code, text), kind, "{code} {text}");
        }
    }

    #[test]
    fn a_node_of_a_cluster_is_no_server() {
        let error = refused("MOVED", "3999 127.0.0.1:6381").to_string();
        assert!(error.ends_with("MOVED 3999 127.0.0.1:6381; the server is a node of a cluster: use redis-cluster:// for it"));
        assert_eq!(refused("OOM", "").to_string(), "refused by the shared tier: OOM");
    }
}
