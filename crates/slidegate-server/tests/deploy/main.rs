//! The files of `deploy/` and the programs of `docs/`, run as they are by the programs they are
//! for.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod ci;
mod envoy;
mod helm;
mod hostile_inputs;
mod image;
mod kubernetes;
mod prometheus;
mod proxies;
mod snippets;
mod systemd;

/// The block of the README that begins with this proxy's name: what starts slidegate, and the statuses of its requests
/// if the proxy listens on this port.
fn of_readme(proxy: &str, listens: &str, port: u16) -> (String, Vec<String>) {
    let readme = include_str!("../../../../README.md");
    let (_, block) = readme.split_once(&format!("```sh\n# {proxy}: ")).expect("a block");
    let lines = || block.lines().take_while(|line| !line.starts_with("```"));
    let serve =
        lines().find_map(|line| line.strip_prefix("slidegate serve ")?.strip_suffix(" &")).expect("serve");
    let curls = lines().last().expect("requests").replace(listens, &format!("127.0.0.1:{port}"));
    let mut shell = slidegate_testkit::process::command("sh");
    let output = shell.args(["-c", &curls]).output().expect("a shell is there");
    let statuses = slidegate_testkit::service::text(&output.stdout);
    (serve.to_owned(), statuses.lines().map(str::to_owned).collect())
}
