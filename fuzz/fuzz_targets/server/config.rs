//! What people write for a server: table text, a configuration, a URI, a line of the control socket.
//!
//! The first byte chooses which. Laws: nothing panics, whatever is wrong is told in one line, a table is without holes
//! and names each of its devices, lines may end with a semicolon as well, and a URI, or a request that was understood,
//! is the same when it is written and read again.
#![no_main]

#[path = "../../../crates/cli/src/config.rs"]
#[allow(dead_code, reason = "what a server makes of it is not looked at")]
mod config;
#[path = "../../../crates/cli/src/control/protocol.rs"]
#[allow(dead_code, reason = "a client reads replies, a server makes them")]
mod protocol;

use config::Config;
use forebay::TableText;
use forebay_nbd::uri::Uri;
use libfuzzer_sys::fuzz_target;
use protocol::{Reply, Request};

fn told_in_one_line(error: &dyn std::fmt::Display) {
    let sentence = error.to_string();
    assert!(!sentence.is_empty() && !sentence.contains('\n'), "{sentence:?}");
}

fn table(text: &str) {
    let read = TableText::parse(text);
    match &read {
        Ok(table) => {
            let mut end = 0;
            for row in table.rows() {
                assert!(row.extent.start.0 == end && row.extent.end().0 > end && row.extent.end().0 <= 1 << 54);
                end = row.extent.end().0;
            }
            let named: Vec<_> = table.rows().iter().flat_map(|row| row.target.devices()).collect();
            let names = table.names();
            assert_eq!(named.len(), names.devices.len());
            assert!(named.iter().all(|name| names.devices.contains(name)));
        }
        Err(error) => {
            told_in_one_line(error);
            assert!(error.line >= 1 && error.line <= 1 + text.matches(['\n', ';']).count());
        }
    }
    // Behind a comment or a backslash a line break is another thing than a semicolon.
    if !text.contains(['#', '\\']) {
        assert_eq!(TableText::parse(&text.replace('\n', ";")), read);
    }
}

fn uri(text: &str) {
    match text.parse::<Uri>() {
        Ok(uri) => assert_eq!(uri.to_string().parse::<Uri>().as_ref(), Ok(&uri), "{text:?}"),
        Err(error) => told_in_one_line(&error),
    }
}

fn configuration(text: &str) {
    match Config::parse(text) {
        Ok(config) => {
            assert!(!config.device.is_empty());
            for device in &config.device {
                table(&device.table);
                device.export.iter().for_each(|export| uri(export));
            }
        }
        Err(problem) => told_in_one_line(&problem),
    }
}

fn control_line(text: &str) {
    match serde_json::from_str::<Request>(text) {
        Ok(request) => {
            let line = serde_json::to_string(&request).expect("a request is JSON");
            assert!(!line.contains('\n') && serde_json::from_str::<Request>(&line).is_ok_and(|again| again == request));
        }
        Err(error) => {
            let reply = serde_json::to_string(&Reply::Error(format!("the request is not understood: {error}")));
            assert!(!reply.expect("a reply is JSON").contains('\n'));
        }
    }
    if let Ok(reply) = serde_json::from_str::<Reply>(text) {
        assert!(serde_json::to_string(&reply).is_ok());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match choice % 4 {
        0 => table(text),
        1 => configuration(text),
        2 => uri(text),
        _ => control_line(text),
    }
});
