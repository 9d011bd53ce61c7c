//! What is answered, before it is HTTP.

use serde::Serialize;
use tiny_http::{Header, Request, Response, StatusCode};

pub(crate) const JSON: &str = "application/json";

pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Reply {
        let headers = vec![("Content-Type", content_type.to_owned())];
        Reply { status, headers, body: body.into() }
    }

    pub(crate) fn json(status: u16, body: &impl Serialize) -> Reply {
        let mut body = serde_json::to_vec(body).expect("what is answered has no odd map keys");
        body.push(b'\n');
        Reply::new(status, JSON, body)
    }

    /// An error, and what it is, for whoever reads it.
    pub(crate) fn error(status: u16, reason: &str) -> Reply {
        Reply::json(status, &serde_json::json!({ "error": reason }))
    }

    /// Not now, but soon: whoever asks again in a second finds what was being loaded meanwhile.
    pub(crate) fn unavailable(reason: &str) -> Reply {
        Reply::error(503, reason).header("Retry-After", "1")
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }

    /// Sends it. If its client has gone, nobody is the worse for it.
    pub(crate) fn send(self, request: Request) {
        let mut response = Response::from_data(self.body).with_status_code(StatusCode(self.status));
        for (name, value) in self.headers {
            let header = Header::from_bytes(name, value).expect("our headers are plain ASCII");
            response.add_header(header);
        }
        let _ = request.respond(response);
    }
}
