//! The files of the page: headers that protect it, and what is vendored.

use std::io::Write;
use std::process::{Command, Stdio};

use slidegate_testkit::service::Server;

/// One inline script or one font from elsewhere, and the policy that protects the page would have
/// to be loosened.
#[test]
fn the_page_comes_whole_from_the_service_with_headers_that_protect_it() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    let page = server.get("/");
    let mut open = vec!["/".to_owned()];
    let mut seen: Vec<String> = Vec::new();
    while let Some(path) = open.pop() {
        let answer = server.get(&path);
        assert_eq!(answer.status, 200, "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
        for ours in answer.body.split('"').filter(|part| part.starts_with("/dashboard/")) {
            if !seen.contains(&ours.to_owned()) {
                seen.push(ours.to_owned());
                open.push(ours.to_owned());
            }
        }
        for module in answer.body.split('\'').filter_map(|part| part.strip_prefix("./")) {
            let module = format!("/dashboard/{module}");
            if !seen.contains(&module) {
                seen.push(module.clone());
                open.push(module);
            }
        }
    }
    assert!(seen.len() > 15, "{seen:?}");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(!page.body.contains("style=") && !page.body.contains("<style"), "inline styles are refused");
    let tag = page.header("etag").unwrap();
    let again = format!(
        "GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nif-none-match: {tag}\r\n\r\n",
        server.address
    );
    assert!(server.raw(again.as_bytes()).starts_with("HTTP/1.1 304 "));
    assert_eq!(server.post("/", "").status, 405);
    let licence = server.get("/dashboard/uplot.LICENSE");
    assert!(licence.body.starts_with("The MIT License (MIT)"), "{}", licence.body);
}

/// A vendored file that somebody has touched is no longer what its licence and its origin say.
#[test]
fn vendored_files_are_those_that_were_taken() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/control/dashboard/vendor");
    let notes = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
    let sums = notes.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(sums.lines().count(), 3);
    let mut judge = Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sha256sum is there");
    judge.stdin.take().unwrap().write_all(sums.as_bytes()).unwrap();
    assert!(judge.wait().unwrap().success());
}
