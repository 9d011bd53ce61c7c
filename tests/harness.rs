//! What the other tests may take for granted of the servers that they start, and of the trouble
//! that they make for them.
#![cfg(all(unix, not(loom)))]

#[path = "servers/mod.rs"]
mod servers;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use servers::{
    Action, Cluster, Connection, Fault, Mode, PATIENCE, Proxy, Resp, Sentinels, Server, Stub,
    Unreachable, any, eventually, free_port, ipv6_available, named,
};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn simple(text: &str) -> Resp {
    Resp::Simple(text.to_string())
}

fn bulk(text: &str) -> Resp {
    Resp::Bulk(text.into())
}

fn connect(address: SocketAddr) -> Connection {
    Connection::tcp(address).expect("somebody listens")
}

/// The first word of the error that a server answers.
fn error_code(server: &Server, command: &[&str]) -> String {
    let answer = server.command(command);
    answer.error_code().unwrap_or_else(|| panic!("no error: {answer:?}")).to_string()
}

fn runs(process: u32) -> bool {
    let signal =
        Command::new("kill").args(["-0", &process.to_string()]).stderr(Stdio::null()).status();
    signal.expect("there is a kill").success()
}

#[test]
fn a_server_leaves_neither_a_process_nor_a_directory() {
    let server = Server::start();
    assert_eq!(connect(server.address()).call(&["SET", "a", "1"]).unwrap(), simple("OK"));
    let (process, directory) = (server.process_id().unwrap(), server.directory().to_path_buf());
    assert!(runs(process) && directory.exists());
    drop(server);
    assert!(!runs(process) && !directory.exists());
}

/// Starts a server, says where it is, and then dies without dropping it. It is no test of its own.
#[test]
#[ignore = "run by the test of a killed process"]
fn dies_with_a_server() {
    let server = Server::start();
    println!("\nserver {} {}", server.process_id().unwrap(), server.directory().display());
    std::process::exit(1);
}

#[test]
fn a_server_does_not_outlive_the_process_of_its_test() {
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--ignored", "--exact", "--nocapture", "dies_with_a_server"]);
    let output = test.stderr(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    let output = String::from_utf8(output.stdout).unwrap();
    let line = output.lines().find_map(|line| line.strip_prefix("server ")).expect(&output);
    let (process, directory) = line.split_once(' ').unwrap();
    let (process, directory) = (process.parse().unwrap(), PathBuf::from(directory));
    eventually("the server is gone", || !runs(process) && !directory.exists());
}

#[test]
fn a_killed_server_refuses_until_it_is_restarted_with_or_without_its_data() {
    let server = Server::start();
    let set = |value| server.command(&["SET", "a", value]).good();
    set("1");
    server.kill9();
    let refused = TcpStream::connect(server.address()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert!(server.try_command(&["PING"]).is_err());

    server.restart();
    assert_eq!(server.command(&["GET", "a"]), Resp::Nil);

    set("2");
    server.restart_keeping_data();
    assert_eq!(server.command(&["GET", "a"]), bulk("2"));

    set("3");
    server.save();
    set("4");
    server.kill9();
    server.restart_keeping_data();
    assert_eq!(server.command(&["GET", "a"]), bulk("3"));
}

#[test]
fn a_paused_server_accepts_and_says_nothing() {
    let server = Server::start();
    let mut client = connect(server.address());
    client.set_timeout(ms(50)).unwrap();
    server.pause();
    for _ in 0..2 {
        let error = client.call(&["PING"]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        client = connect(server.address());
        client.set_timeout(ms(50)).unwrap();
    }
    client.send(&servers::encode(&["PING"])).unwrap();
    server.resume();
    client.set_timeout(PATIENCE).unwrap();
    assert_eq!(client.receive().unwrap(), simple("PONG"));

    server.pause();
    let process = server.process_id().unwrap();
    drop(server);
    assert!(!runs(process));
}

#[test]
fn a_server_can_want_a_password() {
    let server = Server::builder().password("open-sesame").start();
    assert!(server.url().contains(":open-sesame@"));
    let mut client = connect(server.address());
    assert_eq!(client.call(&["GET", "a"]).unwrap().error_code(), Some("NOAUTH"));
    assert_eq!(client.call(&["AUTH", "wrong"]).unwrap().error_code(), Some("WRONGPASS"));
    client.call(&["AUTH", "open-sesame"]).unwrap().good();
    assert_eq!(client.call(&["GET", "a"]).unwrap(), Resp::Nil);
}

#[test]
fn a_server_can_know_users_with_rights() {
    let reader = "user reader on >secret ~pub:* +@read";
    let server = Server::builder().user("user default off").user(reader).start();
    assert!(server.url_as("reader", "secret").contains("reader:secret@"));
    server.command(&["SET", "pub:a", "1"]).good();
    let mut client = connect(server.address());
    client.call(&["AUTH", "reader", "secret"]).unwrap().good();
    assert_eq!(client.call(&["GET", "pub:a"]).unwrap(), bulk("1"));
    assert_eq!(client.call(&["GET", "a"]).unwrap().error_code(), Some("NOPERM"));
    assert_eq!(client.call(&["SET", "pub:a", "2"]).unwrap().error_code(), Some("NOPERM"));
}

#[test]
fn a_server_can_listen_on_ipv6() {
    if !ipv6_available() {
        return;
    }
    let server = Server::builder().ipv6().start();
    assert!(server.url().contains("[::1]"));
    assert_eq!(connect(server.address()).call(&["PING"]).unwrap(), simple("PONG"));
}

#[test]
fn a_server_can_be_reached_through_the_file_system() {
    let server = Server::start();
    let mut client = Connection::unix(&server.socket()).unwrap();
    assert_eq!(client.call(&["PING"]).unwrap(), simple("PONG"));
}

#[test]
fn a_server_can_speak_tls_with_certificates_of_its_own() {
    if !Server::tls_available() {
        return;
    }
    for server in [Server::builder().tls().start(), Server::builder().tls_both_ways().start()] {
        assert!(server.url().starts_with("rediss://"));
        let files = server.certificates();
        for file in [&files.authority, &files.server, &files.client, &files.client_key] {
            assert!(file.exists());
        }
        // It takes this for the beginning of a handshake, and closes.
        let mut client = connect(server.address());
        client.send(&servers::encode(&["PING"])).unwrap();
        assert!(client.receive().is_err());
        assert_eq!(server.command(&["PING"]), simple("PONG"));
    }
}

#[test]
fn a_server_takes_settings() {
    let builder = Server::builder().maxmemory(50_000_000, "allkeys-lru").idle_timeout(1);
    let server = builder.longest_string(1 << 20).line("maxclients 100").start();
    let setting = |name: &str| server.command(&["CONFIG", "GET", name]).items()[1].text();
    assert_eq!(setting("maxmemory"), "50000000");
    assert_eq!(setting("maxmemory-policy"), "allkeys-lru");
    assert_eq!(setting("maxclients"), "100");

    let mut client = connect(server.address());
    let refusal = client.call(&["SET", "a", &"x".repeat((1 << 20) + 1)]);
    // It closes with most of the value unread, so its answer may be lost on the way.
    assert!(refusal.is_err() || refusal.unwrap().is_error());

    let mut idle = connect(server.address());
    idle.set_timeout(PATIENCE).unwrap();
    assert_eq!(idle.receive_bytes().unwrap(), b"");
    assert_eq!(server.command(&["PING"]), simple("PONG"));
}

#[test]
fn keys_calls_and_clients_are_counted() {
    let server = Server::start();
    for key in ["ns:v:{a}", "ns:l:{a}", "ns:L:{b}", "other:l:{a}"] {
        server.command(&["SET", key, "1", "PX", "60000"]).good();
    }
    server.command(&[b"SET".as_slice(), b"n\xff\0", b"1"]).good();
    assert_eq!(server.keys(), ["ns:L:{b}", "ns:l:{a}", "ns:v:{a}", r"n\xff\x00", "other:l:{a}"]);
    assert_eq!(server.leases("ns"), ["ns:L:{b}", "ns:l:{a}"]);
    assert_eq!(server.keys_without_ttl(), [r"n\xff\x00"]);

    assert_eq!(server.calls("set"), 5);
    server.reset_calls();
    assert_eq!(server.total_calls(), 0);
    let mut clients = [(); 3].map(|()| connect(server.address()));
    for client in &mut clients {
        client.call(&["GET", "ns:v:{a}"]).unwrap();
    }
    assert_eq!((server.calls("GET"), server.total_calls()), (3, 3));

    assert_eq!(server.clients(), 3);
    clients[0].call(&["SUBSCRIBE", "news"]).unwrap();
    assert_eq!(server.client_kill_all(), 3);
    assert!(clients.iter_mut().all(|client| client.receive().is_err()));
    assert_eq!(server.clients(), 0);
}

#[test]
fn scripts_are_forgotten() {
    let server = Server::start();
    let sha = server.command(&["SCRIPT", "LOAD", "return 7"]).text();
    assert_eq!(server.command(&["EVALSHA", &sha, "0"]), Resp::Integer(7));
    server.script_flush();
    assert_eq!(error_code(&server, &["EVALSHA", &sha, "0"]), "NOSCRIPT");
}

#[test]
fn a_server_without_memory_answers_oom_to_writes() {
    let server = Server::start();
    server.command(&["SET", "a", "1"]).good();
    server.make_oom();
    assert_eq!(error_code(&server, &["SET", "b", "1"]), "OOM");
    assert_eq!(server.command(&["GET", "a"]), bulk("1"));
    server.end_oom();
    server.command(&["SET", "b", "1"]).good();
}

#[test]
fn a_server_that_cannot_save_answers_misconf_to_writes() {
    let server = Server::start();
    server.command(&["SET", "a", "1"]).good();
    server.make_misconf();
    assert_eq!(error_code(&server, &["SET", "b", "1"]), "MISCONF");
    assert_eq!(error_code(&server, &["PING"]), "MISCONF");
    assert_eq!(server.command(&["GET", "a"]), bulk("1"));
    server.end_misconf();
    server.command(&["SET", "b", "1"]).good();
    server.restart_keeping_data();
    assert_eq!(server.command(&["GET", "b"]), bulk("1"));
}

#[test]
fn a_replica_answers_readonly_to_writes() {
    let server = Server::start();
    server.command(&["SET", "a", "1"]).good();
    server.make_readonly();
    assert_eq!(error_code(&server, &["SET", "b", "1"]), "READONLY");
    assert_eq!(server.command(&["GET", "a"]), bulk("1"));
    server.make_writable();
    server.command(&["SET", "b", "1"]).good();
}

#[test]
fn a_master_that_misses_its_replicas_answers_noreplicas_to_writes() {
    let server = Server::start();
    server.command(&["SET", "a", "1"]).good();
    server.make_noreplicas();
    assert_eq!(error_code(&server, &["SET", "b", "1"]), "NOREPLICAS");
    assert_eq!(server.command(&["GET", "a"]), bulk("1"));
    server.end_noreplicas();
    server.command(&["SET", "b", "1"]).good();
}

#[test]
fn a_replica_without_its_master_answers_masterdown() {
    let server = Server::start();
    server.make_masterdown();
    assert_eq!(error_code(&server, &["GET", "a"]), "MASTERDOWN");
    assert_eq!(error_code(&server, &["SET", "a", "1"]), "READONLY");
    server.make_writable();
    assert_eq!(server.command(&["GET", "a"]), Resp::Nil);
}

#[test]
fn a_server_with_an_endless_script_answers_busy_to_everything() {
    let server = Server::start();
    server.make_busy();
    let mut client = connect(server.address());
    for command in [&["PING"][..], &["GET", "a"], &["SET", "a", "1"]] {
        assert_eq!(client.call(command).unwrap().error_code(), Some("BUSY"));
    }
    server.end_busy();
    assert_eq!(client.call(&["GET", "a"]).unwrap(), Resp::Nil);
}

#[test]
fn a_server_that_loads_its_data_answers_loading_to_everything() {
    let server = Server::start();
    server.command(&["SET", "a", "1"]).good();
    server.loading_restart(Duration::from_secs(3));
    let mut client = connect(server.address());
    for command in [&["PING"][..], &["GET", "a"], &["SET", "b", "1"]] {
        assert_eq!(client.call(command).unwrap().error_code(), Some("LOADING"));
    }
    server.end_loading();
    assert_eq!(client.call(&["GET", "a"]).unwrap(), bulk("1"));
    assert_eq!(server.keys(), ["a"]);
    assert_eq!(server.info("keyspace", "db15"), None);

    server.loading_restart(ms(300));
    eventually("it has loaded by itself", || server.command(&["GET", "a"]) == bulk("1"));
}

#[test]
fn a_cluster_serves_all_slots_and_moves_one_in_two_steps() {
    let cluster = Cluster::start();
    assert_eq!((cluster.nodes().len(), cluster.urls().len()), (3, 3));
    // Both in one slot, by the part in braces.
    let (kept, moved) = ("{tag}:kept", "{tag}:moved");
    let slot = cluster.slot(kept);
    assert_eq!(slot, cluster.slot(moved));
    let old = cluster.owner(slot);
    let new = (old + 1) % 3;
    let node = &cluster.nodes()[old];
    assert_eq!(node.port(), cluster.node_of(kept).port());
    for key in [kept, moved] {
        node.command(&["SET", key, "1"]).good();
    }
    assert_eq!(error_code(&cluster.nodes()[new], &["GET", kept]), "MOVED");

    let migration = cluster.begin_migration(slot, new);
    migration.move_key(moved);
    assert_eq!(migration.from().command(&["GET", kept]), bulk("1"));
    assert_eq!(error_code(migration.from(), &["GET", moved]), "ASK");
    let mut client = connect(migration.to().address());
    let mut asking = |command: &[&str]| {
        client.call(&["ASKING"]).unwrap().good();
        client.call(command).unwrap()
    };
    assert_eq!(asking(&["GET", moved]), bulk("1"));
    assert_eq!(asking(&["MGET", kept, moved]).error_code(), Some("TRYAGAIN"));
    migration.finish();

    assert_eq!(cluster.owner(slot), new);
    for key in [kept, moved] {
        assert_eq!(cluster.node_of(key).command(&["GET", key]), bulk("1"));
        assert_eq!(error_code(node, &["GET", key]), "MOVED");
    }
    assert_eq!(cluster.keys(), [kept, moved]);

    cluster.migrate_slot(slot, old);
    assert_eq!(node.command(&["GET", kept]), bulk("1"));
}

#[test]
fn sentinels_promote_the_replica_of_a_killed_master() {
    let sentinels = Sentinels::start();
    assert_eq!((sentinels.sentinels().len(), sentinels.urls().len()), (3, 3));
    let (old, new) = (sentinels.master().port(), sentinels.replica().port());
    assert_eq!([old, new], sentinels.servers().each_ref().map(Server::port));
    sentinels.master().command(&["SET", "a", "1"]).good();
    sentinels.until_replicated();
    sentinels.fail_over();
    assert_eq!((sentinels.master().port(), sentinels.replica().port()), (new, old));
    assert_eq!(sentinels.master().command(&["GET", "a"]), bulk("1"));
    sentinels.master().command(&["SET", "b", "1"]).good();
}

#[test]
fn sentinels_switch_while_the_master_is_well() {
    let sentinels = Sentinels::start();
    let new = sentinels.replica().port();
    sentinels.switch();
    assert_eq!(sentinels.master().port(), new);
    sentinels.master().command(&["SET", "a", "1"]).good();
}

#[test]
fn at_an_unreachable_address_nobody_refuses_and_nobody_accepts() {
    let nowhere = Unreachable::new();
    assert!(nowhere.url().contains(&nowhere.address().to_string()));
    for _ in 0..3 {
        let error = TcpStream::connect_timeout(&nowhere.address(), ms(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}

// ---- the proxy

/// A stub behind a proxy: `GET` answers the key, everything else `OK`.
fn proxied() -> (Stub, Proxy) {
    let stub = Stub::new(|call| match call.name().as_str() {
        "GET" => Action::bulk(call.words[1].clone()),
        _ => Action::ok(),
    });
    let proxy = Proxy::new(stub.address());
    (stub, proxy)
}

#[track_caller]
fn is_silent(client: &mut Connection) {
    client.set_timeout(ms(50)).unwrap();
    assert_eq!(client.receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    client.set_timeout(PATIENCE).unwrap();
}

#[track_caller]
fn is_closed(client: &mut Connection) {
    assert!(client.receive().is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock));
}

#[test]
fn a_proxy_passes_what_it_sees_and_counts_it() {
    let (stub, proxy) = proxied();
    let mut client = connect(proxy.address());
    let large = "x".repeat(3 << 20);
    assert_eq!(client.call(&["GET", &large]).unwrap(), bulk(&large));
    // Two commands at a time, the second one in two parts.
    let both = [servers::encode(&["GET", "a"]), servers::encode(&["GET", "b"])].concat();
    client.send(&both[..both.len() - 5]).unwrap();
    assert_eq!(client.receive().unwrap(), bulk("a"));
    client.send(&both[both.len() - 5..]).unwrap();
    assert_eq!(client.receive().unwrap(), bulk("b"));
    assert_eq!((proxy.count("get"), stub.count("GET")), (3, 3));
    assert_eq!(proxy.commands()[2], [b"GET", b"b".as_slice()]);
    proxy.forget_commands();
    assert_eq!(proxy.count("get"), 0);
    assert_eq!((proxy.opened(), proxy.open()), (1, 1));
    drop(client);
    eventually("the client's end is seen", || (proxy.open(), stub.closed()) == (0, 1));
    assert!(proxy.url().contains(&proxy.port().to_string()));
}

#[test]
fn a_proxy_passes_what_it_does_not_understand() {
    let server = Server::start();
    let proxy = Proxy::new(server.address());
    let mut client = connect(proxy.address());
    client.send(b"PING\r\n").unwrap();
    assert_eq!(client.receive().unwrap(), simple("PONG"));

    let mut subscriber = connect(proxy.address());
    assert_eq!(subscriber.call(&["SUBSCRIBE", "news"]).unwrap().items()[2], Resp::Integer(1));
    for news in ["one", "two"] {
        server.command(&["PUBLISH", "news", news]).good();
        assert_eq!(subscriber.receive().unwrap().items()[2], bulk(news));
    }
    proxy.inject(b"+OK\r\n");
    assert_eq!(subscriber.receive().unwrap(), simple("OK"));
    proxy.set(Mode::BlackHole);
    server.command(&["PUBLISH", "news", "three"]).good();
    is_silent(&mut subscriber);
}

#[test]
fn a_black_hole_accepts_and_never_answers() {
    let (stub, proxy) = proxied();
    let mut before = connect(proxy.address());
    before.call(&["GET", "a"]).unwrap();
    proxy.set(Mode::BlackHole);
    let mut during = connect(proxy.address());
    for client in [&mut before, &mut during] {
        client.send(&servers::encode(&["GET", "b"])).unwrap();
        is_silent(client);
    }
    proxy.heal();
    // What was swallowed is gone, and so are these connections.
    for client in [&mut before, &mut during] {
        client.send(&servers::encode(&["GET", "b"])).unwrap();
        is_silent(client);
    }
    assert_eq!(connect(proxy.address()).call(&["GET", "c"]).unwrap(), bulk("c"));
    assert_eq!(stub.count("GET"), 2);
}

#[test]
fn a_proxy_refuses_or_hangs_up() {
    let (_stub, proxy) = proxied();
    for _ in 0..3 {
        proxy.set(Mode::Refuse);
        let refused = TcpStream::connect(proxy.address()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        proxy.set(Mode::HangUp);
        is_closed(&mut connect(proxy.address()));
        proxy.set(Mode::Pass);
        assert_eq!(connect(proxy.address()).call(&["GET", "a"]).unwrap(), bulk("a"));
    }
}

#[test]
fn a_proxy_without_a_server_closes() {
    let proxy = Proxy::new(SocketAddr::from(([127, 0, 0, 1], free_port())));
    is_closed(&mut connect(proxy.address()));
}

#[test]
fn a_proxy_holds_commands_back() {
    let (stub, proxy) = proxied();
    let mut client = connect(proxy.address());
    proxy.set(Mode::Freeze);
    client.send(&servers::encode(&["GET", "a"])).unwrap();
    is_silent(&mut client);
    assert_eq!(stub.count("GET"), 0);
    proxy.heal();
    assert_eq!(client.receive().unwrap(), bulk("a"));
}

#[test]
fn a_proxy_drips_and_delays_replies() {
    let (_stub, proxy) = proxied();
    let mut client = connect(proxy.address());
    let timed = |client: &mut Connection| {
        let began = Instant::now();
        assert_eq!(client.call(&["GET", "abcde"]).unwrap(), bulk("abcde"));
        began.elapsed()
    };
    proxy.set(Mode::Drip { bytes: 1, every: ms(10) });
    assert!(timed(&mut client) >= ms(100), "eleven bytes have ten pauses between them");
    proxy.set(Mode::Delay(ms(50)));
    assert!(timed(&mut client) >= ms(50));

    // The end of a mode is the end of its pauses.
    proxy.set(Mode::Delay(PATIENCE * 2));
    client.send(&servers::encode(&["GET", "a"])).unwrap();
    is_silent(&mut client);
    proxy.heal();
    assert_eq!(client.receive().unwrap(), bulk("a"));
}

#[test]
fn a_proxy_cuts_all_connections() {
    let (_stub, proxy) = proxied();
    let mut clients = [(); 3].map(|()| connect(proxy.address()));
    for client in &mut clients {
        client.call(&["GET", "a"]).unwrap();
    }
    assert_eq!(proxy.cut(), 3);
    clients.iter_mut().for_each(is_closed);
    assert_eq!((proxy.opened(), proxy.open(), proxy.cut()), (3, 0, 0));
}

#[test]
fn a_fault_meets_the_reply_to_its_command() {
    let (stub, proxy) = proxied();
    let open = || connect(proxy.address());
    let until_called = |key| {
        eventually("the command is through", || stub.calls().last().unwrap().text(1) == key);
    };

    proxy.once(named("set"), Fault::Cut(0));
    let mut client = open();
    assert_eq!(client.call(&["GET", "a"]).unwrap(), bulk("a"));
    client.send(&servers::encode(&["SET", "a", "1"])).unwrap();
    is_closed(&mut client);
    assert_eq!(stub.count("SET"), 1, "it was executed");

    proxy.once(any(), Fault::Unsent);
    let mut client = open();
    client.send(&servers::encode(&["SET", "a", "1"])).unwrap();
    is_closed(&mut client);
    assert_eq!(stub.count("SET"), 1, "it was not executed");

    proxy.once(any(), Fault::Cut(5));
    let mut client = open();
    client.send(&servers::encode(&["GET", "abc"])).unwrap();
    assert_eq!(client.receive_bytes().unwrap(), b"$3\r\na");
    assert_eq!(client.receive_bytes().unwrap(), b"");

    proxy.once(any(), Fault::Stall(5));
    let mut client = open();
    client.send(&servers::encode(&["GET", "abc"])).unwrap();
    assert_eq!(client.receive_bytes().unwrap(), b"$3\r\na");
    is_silent(&mut client);

    proxy.once(any(), Fault::Pause(5, ms(50)));
    let (mut client, began) = (open(), Instant::now());
    assert_eq!(client.call(&["GET", "abc"]).unwrap(), bulk("abc"));
    assert!(began.elapsed() >= ms(50));

    proxy.once(any(), Fault::Before(b"+OK\r\n".to_vec()));
    assert_eq!(client.call(&["GET", "a"]).unwrap(), simple("OK"));
    assert_eq!(client.call(&["GET", "b"]).unwrap(), bulk("a"), "one step off from now on");
    // Else the next fault could meet this command, whose caller has an answer already.
    until_called("b");

    let mut client = open();
    proxy.once(any(), Fault::After(b"+OK\r\n".to_vec()));
    assert_eq!(client.call(&["GET", "a"]).unwrap(), bulk("a"));
    assert_eq!(client.call(&["GET", "b"]).unwrap(), simple("OK"));
    until_called("b");

    let mut client = open();
    proxy.once(any(), Fault::Replace(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
    assert_eq!(client.call(&["GET", "a"]).unwrap_err().kind(), io::ErrorKind::InvalidData);

    // In their order among the replies of a pipeline.
    let mut client = open();
    let reads = stub.count("GET");
    proxy
        .always(|command| command.last().unwrap() == b"b", Fault::Answer(b"-LOADING\r\n".to_vec()));
    for _ in 0..3 {
        let pipeline = ["a", "b", "c"].map(|key| servers::encode(&["GET", key]));
        client.send(&pipeline.concat()).unwrap();
        assert_eq!(client.receive().unwrap(), bulk("a"));
        assert_eq!(client.receive().unwrap().error_code(), Some("LOADING"));
        assert_eq!(client.receive().unwrap(), bulk("c"));
    }
    assert_eq!(stub.count("GET"), reads + 6);
    proxy.heal();
    assert_eq!(client.call(&["GET", "b"]).unwrap(), bulk("b"));
}

#[test]
fn a_proxy_ends_whatever_it_is_about() {
    let modes = [
        Mode::Pass,
        Mode::BlackHole,
        Mode::Refuse,
        Mode::HangUp,
        Mode::Freeze,
        Mode::Drip { bytes: 1, every: PATIENCE },
        Mode::Delay(PATIENCE),
    ];
    for mode in modes {
        let (_stub, proxy) = proxied();
        let mut client = connect(proxy.address());
        client.call(&["GET", "a"]).unwrap();
        proxy.set(mode);
        client.send(&servers::encode(&["GET", "a"])).unwrap();
        let began = Instant::now();
        drop(proxy);
        assert!(began.elapsed() < Duration::from_secs(4), "{mode:?} goes on");
    }
}

// ---- the stub

#[test]
fn a_stub_does_what_its_script_says_and_remembers_it() {
    let stub = Stub::new(|call| match call.text(1).as_str() {
        "drip" => Action::Drip { reply: b"+OK\r\n".to_vec(), bytes: 1, every: ms(10) },
        "late" => Action::ok().after(ms(50)),
        "close" => Action::All(vec![Action::Reply(b"$3\r\na".to_vec()), Action::Close]),
        "reset" => Action::Reset,
        "hang" => Action::Hang,
        "loading" => Action::error("LOADING wait"),
        "number" => Action::integer(call.nth as i64),
        _ => Action::nil(),
    });
    let mut client = connect(stub.address());
    let mut get = |key: &str| client.call(&["get", key]);
    assert_eq!(get("a").unwrap(), Resp::Nil);
    assert_eq!(get("number").unwrap(), Resp::Integer(1));
    assert_eq!(get("loading").unwrap().error_code(), Some("LOADING"));
    for slow in ["drip", "late"] {
        let began = Instant::now();
        assert_eq!(get(slow).unwrap(), simple("OK"));
        assert!(began.elapsed() >= ms(40));
    }
    let error = get("close").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);

    let mut client = connect(stub.address());
    let error = client.call(&["get", "reset"]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

    let mut client = connect(stub.address());
    for key in ["hang", "a"] {
        client.send(&servers::encode(&["get", key])).unwrap();
        is_silent(&mut client);
    }
    assert_eq!((stub.opened(), stub.closed()), (3, 2));
    drop(client);
    eventually("the client's end is seen", || stub.closed() == 3);

    assert_eq!((stub.count("get"), stub.calls().len()), (9, 9));
    let last = stub.calls().pop().unwrap();
    assert_eq!((last.connection, last.nth, last.name().as_str()), (2, 1, "GET"));
    assert!(stub.url().contains(&stub.port().to_string()));
}

#[test]
fn a_stub_can_speak_first() {
    let full = |nth| {
        let refusal = Action::error("ERR max number of clients reached");
        (nth > 0).then(|| Action::All(vec![refusal, Action::Close]))
    };
    let stub = Stub::greeting(full, |_| Action::ok());
    let mut first = connect(stub.address());
    assert_eq!(first.call(&["PING"]).unwrap(), simple("OK"));
    let mut second = connect(stub.address());
    assert_eq!(second.receive().unwrap().error_code(), Some("ERR"));
    is_closed(&mut second);
    drop(stub);
    is_closed(&mut first);
}
