//! The container image: its Dockerfile, what is in it, and how it runs.
//!
//! The final stage is built as it is, around the binary of these tests. That one may need shared
//! libraries, which are laid beside it when it runs; they are not part of the image. The path of a
//! static binary in `SLIDEGATE_IMAGE_BINARY` tests that one instead.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use slidegate_testkit::http::{send, try_send};
use slidegate_testkit::process::command;
use slidegate_testkit::process::{self, Process};
use slidegate_testkit::service::{installed, slidegate, text};
use slidegate_testkit::{TempDir, ports, until_true};

const DOCKERFILE: &str = include_str!("../../../../deploy/Dockerfile");
/// Who runs it, in the image and in the manifests.
const USER: u32 = 65_532;
/// Most bytes of all files in the image, around the binary of these tests, which is not optimized: 43
/// MB, or around a static binary of a release, about 20 MB. More is a dependency that does too much,
/// or files that nobody needs.
const MOST_BYTES: u64 = 56_000_000;
const MOST_BYTES_RELEASED: u64 = 26_000_000;
/// Requests of a client that goes on although it could know that the service is not ready.
const LATE_REQUESTS: usize = 50;

/// A mistake must show here, not when the image is built.
#[test]
fn the_dockerfile_has_no_findings() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/Dockerfile");
    let output = command(installed("python/bin/hadolint")).arg(file).output().unwrap();
    assert_eq!(text(&output.stdout) + &text(&output.stderr), "");
    assert!(output.status.success());
}

/// The build sees no more than it needs: a changed document must not build everything again, and no
/// secret of a checkout may end up in a layer.
#[test]
fn the_build_context_has_only_what_cargo_needs() {
    let ignored = include_str!("../../../../.dockerignore");
    let lines: Vec<_> = ignored.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines[0], "*", "everything is left out at first");
    for needed in ["Cargo.toml", "Cargo.lock", "crates"] {
        assert!(lines.contains(&format!("!{needed}").as_str()), "{needed}");
    }
    let other = ["!.git", "!target", "!deploy"];
    assert!(lines.iter().all(|line| !other.contains(line)), "{lines:?}");
}

/// A built image.
struct Image {
    folder: TempDir,
    /// Its configuration, as in `docker inspect`.
    config: Value,
    /// Its files.
    root: PathBuf,
}

impl Image {
    /// Builds the final stage of the Dockerfile and unpacks it.
    fn build() -> Self {
        let folder = TempDir::new("image");
        let dir = Path::new(&folder.file("anchor", "")).parent().unwrap().to_owned();
        let (context, storage) = (dir.join("context"), dir.join("storage"));
        let certificates = context.join("image/etc/ssl/certs");
        fs::create_dir_all(&certificates).unwrap();
        fs::write(certificates.join("ca-certificates.crt"), "").unwrap();
        let binary = std::env::var_os("SLIDEGATE_IMAGE_BINARY");
        let binary = binary.unwrap_or_else(|| slidegate().get_program().to_owned());
        let mut strip = Command::new("strip");
        process::run(
            {
                strip.arg("-o").arg(context.join("image/slidegate")).arg(binary);
                strip
            },
            "binutils",
        );
        let last = DOCKERFILE.rfind("\nFROM scratch\n").expect("the final stage is empty at first");
        let file = format!("FROM scratch AS build\nCOPY image /image\n{}", &DOCKERFILE[last..]);
        fs::write(context.join("Dockerfile"), file).unwrap();
        let buildah = || {
            let mut command = command("buildah");
            command.args(["--storage-driver", "vfs", "--root"]).arg(&storage);
            command.arg("--runroot").arg(dir.join("run")).current_dir(&context);
            command
        };
        let mut build = buildah();
        // The image format of OCI has no health check.
        build.args(["bud", "--isolation", "chroot", "--format", "docker", "--tag", "slidegate", "."]);
        process::run(build, "buildah");
        let mut push = buildah();
        push.arg("push").arg("slidegate").arg(format!("dir:{}", dir.join("image").display()));
        process::run(push, "buildah");
        let read = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(dir.join("image").join(name)).unwrap()).unwrap()
        };
        let blob = |digest: &Value| digest.as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
        let manifest = read("manifest.json");
        let config = read(&blob(&manifest["config"]["digest"]))["config"].clone();
        let root = dir.join("root");
        fs::create_dir(&root).unwrap();
        // The container's user has to enter it.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 1, "one layer: {layers:?}");
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(dir.join("image").join(blob(&layers[0]["digest"]))).arg("-C").arg(&root);
        process::run(tar, "tar");
        Self { folder, config, root }
    }

    /// The paths of all files.
    fn files(&self) -> Vec<String> {
        let found = Command::new("find").arg(&self.root).args(["-type", "f", "-printf", "/%P %m\n"]).output();
        let mut files: Vec<_> = text(&found.unwrap().stdout).lines().map(str::to_owned).collect();
        files.sort();
        files
    }

    /// Lays shared libraries beside the binary, if it needs any.
    fn complete(&self) {
        let found = Command::new("ldd").arg(self.root.join("slidegate")).output().unwrap();
        for library in text(&found.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
            let copy = self.root.join(&library[1..]);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(library, copy).unwrap();
        }
    }

    /// A command in the image as a container engine runs it: its user, its variables, and a root
    /// file system that cannot be written. `SLIDEGATE_LISTEN` has this port.
    fn command(&self, port: u16, words: &[&Value]) -> Command {
        let script = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" && exec chroot $USERSPEC \"$0\" \"$@\"";
        let mut command = command("unshare");
        // Who is not root becomes it in a namespace, where nobody else exists.
        let is_root = text(&Command::new("id").arg("-u").output().unwrap().stdout).trim() == "0";
        command.args(if is_root { &["--mount"][..] } else { &["--map-root-user", "--mount"] });
        command.args(["sh", "-c", script]).arg(&self.root);
        command.args(words.iter().map(|word| word.as_str().unwrap())).env_clear();
        command.env("USERSPEC", if is_root { format!("--userspec={USER}:{USER}") } else { String::new() });
        for variable in self.config["Env"].as_array().unwrap() {
            let (name, value) = variable.as_str().unwrap().split_once('=').unwrap();
            let value = if name == "SLIDEGATE_LISTEN" { format!("0.0.0.0:{port}") } else { value.to_owned() };
            command.env(name, value);
        }
        command
    }
}

fn words<'v>(lists: &[&'v Value]) -> Vec<&'v Value> {
    lists.iter().flat_map(|list| list.as_array().unwrap()).collect()
}

/// Everything that an attacker could use in a container is what is in it; and a deploy must cost no
/// request.
#[test]
fn the_image_is_small_runs_without_rights_and_loses_no_request_when_it_stops() {
    let image = Image::build();
    let config = &image.config;
    assert_eq!(config["User"], format!("{USER}:{USER}"));
    assert_eq!((&config["Entrypoint"], &config["Cmd"]), (&json!(["/slidegate"]), &json!(["serve"])));
    assert_eq!(config["ExposedPorts"], json!({ "7979/tcp": {} }));
    assert_eq!(config["StopSignal"], "SIGTERM");
    assert_eq!(config["Healthcheck"]["Test"], json!(["CMD", "/slidegate", "health"]));
    let labels = &config["Labels"];
    assert_eq!(labels["org.opencontainers.image.licenses"], "MIT OR Apache-2.0");
    assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert!(config["Env"].as_array().unwrap().contains(&json!("SLIDEGATE_LISTEN=0.0.0.0:7979")), "{config}");
    assert_eq!(image.files(), ["/etc/ssl/certs/ca-certificates.crt 644", "/slidegate 755"]);
    let is_released = std::env::var_os("SLIDEGATE_IMAGE_BINARY").is_some();
    let most = if is_released { MOST_BYTES_RELEASED } else { MOST_BYTES };
    let size = fs::metadata(image.root.join("slidegate")).unwrap().len();
    assert!(size <= most, "{size} bytes, more than {most}");

    image.complete();
    let port = ports::free();
    let mut serve = image.command(port, &words(&[&config["Entrypoint"], &config["Cmd"]]));
    // The second signal ends it, however long the client takes.
    serve.stdout(Stdio::null()).env("SLIDEGATE_DRAIN_DELAY", "1h");
    let home = TempDir::new("image-run");
    let home = Path::new(&home.file("anchor", "")).parent().unwrap().to_owned();
    let mut service = Process::start(serve, &home, "util-linux");
    let test = &config["Healthcheck"]["Test"].as_array().unwrap()[1..];
    let health = || {
        let output = image.command(port, &test.iter().collect::<Vec<_>>()).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let url = format!("http://127.0.0.1:{port}");
    let ready = (Some(0), format!("ready: {url}/readyz\n"));
    until_true("it is healthy", || {
        assert!(!service.has_ended(), "it starts");
        health() == ready
    });
    let of_process = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", service.pid())).unwrap();
    let status = of_process("status");
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("Name:"), "slidegate");
    if field("Uid:").starts_with(&USER.to_string()) {
        assert_eq!(field("CapEff:"), "0000000000000000");
    }
    let mounts = of_process("mountinfo");
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).expect("it has a root");
    assert!(root.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro"), "{root}");

    let client = {
        let url = url.clone();
        move || {
            let (mut late, mut served) = (0, 0);
            while late < LATE_REQUESTS {
                late += usize::from(send("GET", &format!("{url}/readyz"), "", "").status == 503);
                let answer = try_send("GET", &format!("{url}/v1/check?user=alice"), "", "");
                let answer = answer.unwrap_or_else(|error| panic!("{served} served, {late} late: {error}"));
                assert!(matches!(answer.status, 200 | 429), "{}", answer.body);
                served += 1;
            }
        }
    };
    let client = thread::spawn(client);
    let stop = || {
        let pid = service.pid().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    };
    stop();
    until_true("it is not healthy", || {
        health() == (Some(1), format!("{url}/readyz returned 503: shutting down\n"))
    });
    client.join().expect("no request is lost");
    stop();
    until_true("it ends", || service.has_ended());
    drop(image.folder);
}
