//! Metadata contexts and the export they belong to.

use super::super::super::session::Verdict;
use super::super::super::session::{Command, RequestHeader};
use super::*;
use crate::wire::CommandFlags;

fn knows_status(session: &Session) -> bool {
    let header = RequestHeader { flags: CommandFlags::NONE, kind: 7, cookie: 1, offset: 0, length: 512 };
    match session.judge(&header) {
        Verdict::Accept(request) => request.command == Command::BlockStatus { one: false },
        _ => false,
    }
}

fn context(id: u8) -> Vec<u8> {
    let mut data = vec![0, 0, 0, id];
    data.extend_from_slice(b"base:allocation");
    data
}

#[test]
fn contexts_need_structured_or_extended_replies() {
    let data = contexts("disk", &["base:allocation"]);
    for kind in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        assert_eq!(Client::new().kinds(kind, &data), [rep::ERR_INVALID]);
        assert_eq!(Client::structured().kinds(kind, &data), [rep::META_CONTEXT, rep::ACK]);
        let mut extended = Client::new();
        extended.kinds(opt::EXTENDED_HEADERS, &[]);
        assert_eq!(extended.kinds(kind, &data), [rep::META_CONTEXT, rep::ACK]);
    }
}

#[test]
fn listing_answers_no_query_the_wildcard_and_the_exact_name_with_id_zero() {
    let mut client = Client::structured();
    for queries in [&[][..], &["base:"], &["base:allocation"], &["x-other:y", "base:"]] {
        let (answers, _) = client.send(opt::LIST_META_CONTEXT, &contexts("disk", queries));
        assert_eq!(answers.len(), 2, "{queries:?}");
        assert_eq!(answers[0].data, context(0));
    }
    for queries in [&["base:other"][..], &["qemu:"], &["base"], &[""], &["base:allocation "]] {
        let kinds = client.kinds(opt::LIST_META_CONTEXT, &contexts("disk", queries));
        assert_eq!(kinds, [rep::ACK], "{queries:?}");
    }
}

#[test]
fn selecting_takes_the_exact_name_only_and_once() {
    let mut client = Client::structured();
    for queries in [&[][..], &["base:"], &["base:other"], &["qemu:allocation-depth"]] {
        let kinds = client.kinds(opt::SET_META_CONTEXT, &contexts("disk", queries));
        assert_eq!(kinds, [rep::ACK], "{queries:?}");
    }
    let twice = contexts("disk", &["base:allocation", "base:allocation"]);
    let (answers, _) = client.send(opt::SET_META_CONTEXT, &twice);
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0].data, context(1));
    assert!(knows_status(&client.go("disk", &[])));
}

#[test]
fn a_selection_holds_for_its_export_only() {
    for (name, holds) in [("disk", true), ("", true), ("bytes", false)] {
        let mut client = Client::structured();
        client.send(opt::SET_META_CONTEXT, &contexts("disk", &["base:allocation"]));
        assert_eq!(knows_status(&client.go(name, &[])), holds, "{name}");
        let mut client = Client::structured();
        client.send(opt::SET_META_CONTEXT, &contexts("disk", &["base:allocation"]));
        let (_, step) = client.raw(opt::EXPORT_NAME, name.as_bytes());
        assert!(matches!(step, Step::Transmit(session) if knows_status(&session) == holds));
    }
}

#[test]
fn a_refused_go_does_not_drop_the_selection() {
    let mut client = Client::structured();
    client.send(opt::SET_META_CONTEXT, &contexts("disk", &["base:allocation"]));
    assert_eq!(client.kinds(opt::GO, &query("nothing", &[])), [rep::ERR_UNKNOWN]);
    client.send(opt::INFO, &query("bytes", &[]));
    assert!(knows_status(&client.go("disk", &[])));
}

#[test]
fn selecting_again_replaces_the_selection_even_when_it_fails() {
    let long = vec![0; 50_000];
    let unknown = contexts("nothing", &["base:allocation"]);
    let none = contexts("disk", &[]);
    let mut cut = contexts("disk", &["base:allocation"]);
    cut.pop();
    for (data, kind) in [(&unknown, rep::ERR_UNKNOWN), (&none, rep::ACK), (&cut, rep::ERR_INVALID), (&long, rep::ERR_TOO_BIG)] {
        let mut client = Client::structured();
        client.send(opt::SET_META_CONTEXT, &contexts("disk", &["base:allocation"]));
        assert_eq!(client.kinds(opt::SET_META_CONTEXT, data), [kind]);
        assert!(!knows_status(&client.go("disk", &[])));
    }
}

#[test]
fn malformed_queries_are_invalid() {
    let good = contexts("disk", &["base:allocation", "base:"]);
    for kind in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        let mut client = Client::structured();
        for cut in 0..good.len() {
            assert_eq!(client.kinds(kind, &good[..cut]), [rep::ERR_INVALID], "cut at {cut}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(client.kinds(kind, &longer), [rep::ERR_INVALID]);
        let mut many = text("disk");
        many.put_u32(u32::MAX);
        assert_eq!(client.kinds(kind, &many), [rep::ERR_INVALID]);
        let over_long = contexts("disk", &["q".repeat(STRING_BYTES_MAX + 1).as_str()]);
        assert_eq!(client.kinds(kind, &over_long), [rep::ERR_INVALID]);
    }
}
