//! The Kubernetes manifests: valid, in agreement with each other, and run as far as they can be
//! without a cluster, by the service itself.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use slidegate_testkit::process::command;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, installed, slidegate, text};
use slidegate_testkit::{TempDir, until_true};

/// Kubernetes versions that the manifests are for: the oldest and the newest.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes")
}

/// The documents of a file.
pub(super) fn documents(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    text.split("\n---\n").map(parse).collect()
}

/// One document.
pub(super) fn parse(document: &str) -> Value {
    serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"))
}

/// Fails unless Kubernetes knows every field of the files, in each version.
pub(super) fn validate(files: &[PathBuf]) {
    for version in VERSIONS {
        let mut command = command(installed("python/bin/kubernetes-validate"));
        command.args(["--strict", "--kubernetes-version", version]).args(files);
        let output = command.output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && !said.contains("WARN"), "{version}: {said}");
    }
}

/// The only document of a file.
fn document(file: &str) -> Value {
    let mut documents = documents(file);
    assert_eq!(documents.len(), 1, "{file}");
    documents.remove(0)
}

fn container() -> Value {
    document("deployment.yaml")["spec"]["template"]["spec"]["containers"][0].clone()
}

/// The resources that a kustomization lists.
pub(super) fn resources(kustomization: &str) -> Vec<String> {
    let list = document(kustomization)["resources"].clone();
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// A misspelt field is ignored by the cluster, and with it the limit or the probe that it was.
#[test]
fn every_manifest_is_valid_and_applied() {
    let listed: BTreeSet<_> = resources("kustomization.yaml").into_iter().collect();
    let files =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<_> =
        files.filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml").collect();
    assert_eq!(listed, files);
    validate(&files.iter().map(|file| folder().join(file)).collect::<Vec<_>>());
    for document in files.iter().flat_map(|file| documents(file)) {
        let (kind, metadata) = (&document["kind"], &document["metadata"]);
        if kind != "Namespace" {
            assert_eq!(metadata["namespace"], "slidegate", "{kind}");
            assert_eq!(metadata["labels"]["app.kubernetes.io/name"], "slidegate", "{kind}");
        }
    }
}

/// A cluster that enforces the standard "restricted" rejects pods with more rights, and a stolen pod
/// has what it was given.
#[test]
fn pods_have_no_rights() {
    let pod = document("deployment.yaml")["spec"]["template"]["spec"].clone();
    let security = &pod["securityContext"];
    assert_eq!((&security["runAsNonRoot"], &security["runAsUser"]), (&json!(true), &json!(65_532)));
    assert_eq!(security["seccompProfile"], json!({ "type": "RuntimeDefault" }));
    assert_eq!(
        container()["securityContext"],
        json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] }
        })
    );
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["enableServiceLinks"], false, "links would set variables named SLIDEGATE_...");
    assert!(pod["volumes"].as_array().unwrap().iter().all(|volume| volume.get("hostPath").is_none()));
    assert_eq!(document("serviceaccount.yaml")["automountServiceAccountToken"], false);
}

/// What does not agree fails at the first rollout, or in the first outage.
#[test]
fn the_manifests_agree_with_each_other_and_with_the_service() {
    let (deployment, container) = (document("deployment.yaml"), container());
    let (spec, pod) = (&deployment["spec"], &deployment["spec"]["template"]);
    let labels = pod["metadata"]["labels"].as_object().unwrap();
    let selects = |selector: &Value| {
        let selector = selector.as_object().unwrap();
        assert!(!selector.is_empty());
        assert!(selector.iter().all(|(name, value)| labels.get(name) == Some(value)), "{selector:?}");
    };
    selects(&spec["selector"]["matchLabels"]);
    selects(&document("poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"]);
    selects(&document("networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"]);
    for constraint in pod["spec"]["topologySpreadConstraints"].as_array().unwrap() {
        selects(&constraint["labelSelector"]["matchLabels"]);
    }
    let ports = container["ports"].as_array().unwrap();
    let has_port = |name: &Value| ports.iter().any(|port| &port["name"] == name);
    for service in documents("service.yaml") {
        selects(&service["spec"]["selector"]);
        assert!(has_port(&service["spec"]["ports"][0]["targetPort"]), "{service}");
    }
    for (probe, path) in [("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")] {
        let probe = &container[format!("{probe}Probe")]["httpGet"];
        assert!(probe["path"] == path && has_port(&probe["port"]), "{probe}");
    }
    // The drain delay and the grace period, and the export of spans.
    assert!(pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap() >= 5 + 10 + 10);
    assert_eq!(spec["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
    let autoscaler = document("horizontalpodautoscaler.yaml")["spec"].clone();
    assert_eq!(autoscaler["scaleTargetRef"]["name"], deployment["metadata"]["name"]);
    assert!(spec.get("replicas").is_none(), "each `kubectl apply` would undo what the autoscaler did");
    assert!(autoscaler["minReplicas"].as_u64() >= Some(2));
    // A fixed number is wrong as soon as the autoscaler acts.
    assert_eq!(variable("SLIDEGATE_INSTANCES"), "auto");
    // The file of a ConfigMap that is mounted by `subPath` never changes.
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().all(|mount| mount.get("subPath").is_none() && mount["readOnly"] == true));
    let directory = Path::new(&variable("SLIDEGATE_CONFIG")).parent().unwrap().display().to_string();
    assert!(mounts.iter().any(|mount| mount["mountPath"] == directory));
}

/// The value of a variable of the container.
fn variable(name: &str) -> String {
    let variables = container()["env"].as_array().unwrap().clone();
    let variable = variables.iter().find(|variable| variable["name"] == name);
    variable.unwrap_or_else(|| panic!("{name} is missing"))["value"].as_str().unwrap().to_owned()
}

/// Alerts that exist twice must not differ.
#[test]
fn the_monitoring_has_the_rules_of_the_alerts_and_scrapes_the_service() {
    let alerts = include_str!("../../../../deploy/prometheus/alerts.yml");
    let alerts: Value = serde_saphyr::from_str(alerts).unwrap();
    assert_eq!(resources("monitoring/kustomization.yaml"), ["servicemonitor.yaml", "prometheusrule.yaml"]);
    let rules = document("monitoring/prometheusrule.yaml");
    assert_eq!(rules["kind"], "PrometheusRule");
    assert_eq!(rules["spec"], alerts, "copy the rules of deploy/prometheus/alerts.yml, two columns deeper");
    let monitor = document("monitoring/servicemonitor.yaml");
    let service = documents("service.yaml").remove(0);
    for (name, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&service["metadata"]["labels"][name], value, "{name}");
    }
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], service["spec"]["ports"][0]["name"]);
    assert_eq!(monitor["spec"]["endpoints"][0]["path"], "/metrics");
}

/// The volumes of a pod: the `ConfigMap` and the secret.
pub(super) struct Volumes {
    _folder: TempDir,
    config: PathBuf,
    secrets: PathBuf,
}

impl Volumes {
    pub(super) fn new(redis: &str) -> Self {
        let folder = TempDir::new("kubernetes");
        let root = Path::new(&folder.file("anchor", "")).parent().unwrap().to_owned();
        let (config, secrets) = (root.join("config"), root.join("secrets"));
        fs::create_dir(&config).unwrap();
        fs::create_dir(&secrets).unwrap();
        // The SHA-256 of `monitoring`.
        let tokens = "prometheus:read:14a2326b6bb54f4045dad6bee6f667f64f143e354a6aa77f4bdb5f6ed19ca167";
        for (key, value) in [("redis-url", redis), ("key-secret", "secret"), ("admin-tokens", tokens)] {
            fs::write(secrets.join(key), value).unwrap();
        }
        Self { _folder: folder, config, secrets }
    }

    /// Puts the content in place as the kubelet does: a new directory, one link that is swapped, and
    /// the old directory removed.
    pub(super) fn publish(&self, version: &str, content: &str) {
        let (link, next) = (self.config.join("..data"), self.config.join("..data_tmp"));
        let old = fs::read_link(&link).ok();
        let name = format!("..2026_11_22_{version}");
        fs::create_dir(self.config.join(&name)).unwrap();
        fs::write(self.config.join(&name).join("slidegate.yaml"), content).unwrap();
        symlink(&name, &next).unwrap();
        fs::rename(&next, &link).unwrap();
        match old {
            Some(old) => fs::remove_dir_all(self.config.join(old)).unwrap(),
            None => symlink("..data/slidegate.yaml", self.config.join("slidegate.yaml")).unwrap(),
        }
    }

    /// The variables of a container, with these volumes and free ports.
    pub(super) fn variables(&self, container: &Value) -> Vec<(String, String)> {
        let variables = container["env"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut variables: Vec<_> =
            variables.iter().map(|variable| (text(&variable["name"]), text(&variable["value"]))).collect();
        for (_, value) in &mut variables {
            *value = value
                .replace("/run/secrets/slidegate", self.secrets.to_str().unwrap())
                .replace("/etc/slidegate", self.config.to_str().unwrap())
                .replace("0.0.0.0:7979", "127.0.0.1:0");
        }
        variables
    }
}

/// The config file of a `ConfigMap`, on a free port.
pub(super) fn config_of(map: &Value) -> String {
    let file = map["data"]["slidegate.yaml"].as_str().unwrap();
    let local = file.replace("0.0.0.0:8081", "127.0.0.1:0");
    assert_ne!(file, local);
    local
}

fn config() -> String {
    config_of(&document("configmap.yaml"))
}

/// Each replica without Redis counts alone: two of them admit twice the limit, and nobody notices.
#[test]
fn several_replicas_without_redis_do_not_start() {
    let volumes = Volumes::new("redis://127.0.0.1:1");
    volumes.publish("1", &config());
    let without = volumes.variables(&container()).into_iter().filter(|(name, _)| !name.contains("REDIS"));
    let output = slidegate()
        .args(["serve", "--listen", "127.0.0.1:0"])
        .envs(without)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        text(&output.stderr),
        "SLIDEGATE_INSTANCES: is auto, but there is no shared store, so each instance would admit the whole limit; give \
         SLIDEGATE_REDIS or `--redis`, or run one instance\n"
    );
}

/// Limits are changed by `kubectl apply`, without a restart that would forget nothing but take
/// minutes.
#[test]
fn a_pod_starts_with_its_manifests_and_reloads_a_changed_config_map() {
    let redis = RedisServer::start();
    let volumes = Volumes::new(&format!("{}\n", redis.url()));
    volumes.publish("1", &config());
    let variables = volumes.variables(&container());
    let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let server = Server::start_with(&[], &variables);
    let expected = format!("store      redis://{}, ", redis.address());
    assert!(server.greeting.contains(&expected), "{}", server.greeting);
    assert!(server.greeting.contains("grpc       http://"), "{}", server.greeting);
    assert_eq!(server.get("/metrics").status, 401, "it needs the token of the secret");
    let remaining = || {
        let answer = server.post("/v1/peek", &json!({ "attributes": { "user": "alice" } }).to_string());
        answer.json()["remaining"].clone()
    };
    until_true("it decides", || remaining() == 100);
    let store = || {
        let ready = server.ask_with("authorization: Bearer monitoring\r\n", "GET", "/readyz", None);
        ready.json()["store"].clone()
    };
    // On a busy machine its first call may be late.
    until_true("limits are shared", || store()["shared"] == true);
    until_true("it counts itself", || store()["instances"] == 1);
    let changed = config().replace("limit: 100", "limit: 7");
    volumes.publish("2", &changed);
    until_true("the new limit is in force", || remaining() == 7);
    volumes.publish("3", &changed.replace("limit: 7", "limit: -7"));
    volumes.publish("4", &changed.replace("limit: 7", "limit: 8"));
    until_true("the corrected one is in force", || remaining() == 8);
}
