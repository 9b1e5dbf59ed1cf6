//! The Helm chart: rendered by helm, valid, and in agreement with `deploy/kubernetes` and with the
//! service.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::process::command;
use slidegate_testkit::service::{Server, installed, text};

use super::kubernetes::{Volumes, config_of, documents, parse, resources, validate};

/// The values with which the chart is what `deploy/kubernetes` is.
const AS_MANIFESTS: &str = "{secret: {name: slidegate}, autoscaling: {enabled: true},
monitoring: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}}}";

/// Every value that adds something.
const EVERYTHING: &str = "
fullnameOverride: limits
image: {repository: registry.example/slidegate, tag: 0.1.1, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 9, targetCPUUtilization: 80}
secret: {values: {redis-url: 'redis://:p@redis:6379', key-secret: k, admin-tokens: 'a:read:0', resp-password: p}}
config: {resp: {listen: 0.0.0.0:6380}}
extraArgs: [--log-level, debug]
extraEnv: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'http://collector:4318'}]
extraVolumes: [{name: ca, secret: {secretName: redis-ca}}]
extraVolumeMounts: [{name: ca, mountPath: /run/ca, readOnly: true}]
podAnnotations: {note: text}
podLabels: {team: limits}
nodeSelector: {kubernetes.io/arch: amd64}
tolerations: [{key: dedicated, operator: Exists}]
affinity: {podAntiAffinity: {}}
priorityClassName: system-cluster-critical
monitoring:
  labels: {release: prometheus}
  runbooks: https://wiki.example/slidegate
  serviceMonitor: {enabled: true}
  prometheusRule: {enabled: true}
  rulesConfigMap: {enabled: true}
  dashboard: {enabled: true}
";

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/slidegate")
}

fn read(file: &str) -> String {
    fs::read_to_string(chart().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn helm<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    command(installed("node/layer/helm/helm")).args(arguments).output().unwrap()
}

/// What helm says when it renders a chart, a folder or a package, with values.
fn template(chart: &Path, values: &str) -> Output {
    let folder = TempDir::new("helm");
    let values = folder.file("values.yaml", values);
    let chart = chart.to_str().unwrap();
    helm(&["template", "slidegate", chart, "--namespace", "slidegate", "--values", values.as_str()])
}

/// The rendered objects, as text.
fn rendered(values: &str) -> Vec<String> {
    let output = template(&chart(), values);
    assert!(output.status.success(), "{values}: {}", text(&output.stderr));
    let all = text(&output.stdout);
    all.trim_start_matches("---\n").split("\n---\n").map(str::to_owned).collect()
}

/// The rendered objects, by kind and name.
fn objects(values: &str) -> BTreeMap<String, Value> {
    by_name(rendered(values).iter().map(|document| parse(document)))
}

fn by_name(objects: impl Iterator<Item = Value>) -> BTreeMap<String, Value> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    objects.map(|object| (text(&object["kind"]) + " " + &text(&object["metadata"]["name"]), object)).collect()
}

/// Whoever changes a probe, a right or a port in one place must change it in the other.
#[test]
fn the_chart_has_the_objects_of_the_manifests() {
    let mut chart = objects(AS_MANIFESTS);
    for object in chart.values_mut() {
        let labels = object["metadata"]["labels"].as_object_mut().unwrap();
        for of_helm in ["app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"] {
            assert!(labels.remove(of_helm).is_some(), "{of_helm}");
        }
    }
    let monitoring =
        resources("monitoring/kustomization.yaml").into_iter().map(|file| format!("monitoring/{file}"));
    let files = resources("kustomization.yaml").into_iter().filter(|file| file != "namespace.yaml");
    let mut manifests = by_name(files.chain(monitoring).flat_map(|file| documents(&file)));
    // Written by hand in one place, from values in the other.
    for objects in [&mut chart, &mut manifests] {
        let file = &mut objects.get_mut("ConfigMap slidegate").unwrap()["data"]["slidegate.yaml"];
        *file = parse(file.as_str().unwrap());
    }
    assert_eq!(chart.keys().collect::<Vec<_>>(), manifests.keys().collect::<Vec<_>>());
    for (name, object) in &chart {
        assert_eq!(object, &manifests[name], "{name}: left is the chart, right is deploy/kubernetes");
    }
}

/// A misspelt field is ignored by the cluster, and with it the limit or the probe that it was.
#[test]
fn whatever_the_values_the_objects_are_valid() {
    let lint = helm(&["lint", "--strict", chart().to_str().unwrap()]);
    assert!(lint.status.success(), "{}{}", text(&lint.stdout), text(&lint.stderr));
    let redis = "{replicas: 3, secret: {name: redis, keys: [redis-url]}}";
    let bare = "{networkPolicy: {clients: [], prometheus: [], egress: []}, config: {grpc: null}}";
    let page = fs::read_to_string(chart().join("../../../docs/deployment.md")).unwrap();
    let (_, example) = page.split_once("```yaml\n# values.yaml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let folder = TempDir::new("helm-valid");
    let mut files = Vec::new();
    for (name, values) in [
        ("default", ""),
        ("redis", redis),
        ("bare", bare),
        ("example", example),
        ("manifests", AS_MANIFESTS),
        ("all", EVERYTHING),
    ] {
        let mut documents = rendered(values);
        // The validator does not know the objects of the Prometheus operator; the test above compares them.
        documents.retain(|document| !document.contains("apiVersion: monitoring.coreos.com/v1"));
        assert!(documents.len() >= 6, "{name}: {}", documents.len());
        files.push(PathBuf::from(folder.file(&format!("{name}.yaml"), documents.join("\n---\n"))));
    }
    validate(&files);
}

/// Two pods without Redis admit twice the limit, and nobody notices.
#[test]
fn values_that_contradict_each_other_are_rejected() {
    for (values, expected) in [
        (
            "{replicas: 3}",
            "replicas: is 3, but there is no Redis, so each pod would admit the whole limit; give a Secret with the key \
             `redis-url` in `secret.name`, or `secret.values.redis-url`, or set it to 1",
        ),
        (
            "{autoscaling: {enabled: true}, secret: {name: s, keys: [admin-tokens]}}",
            "autoscaling.enabled: is true, but there is no Redis, so each pod would admit the whole limit; give a Secret \
             with the key `redis-url` in `secret.name`, or `secret.values.redis-url`, or disable it",
        ),
        (
            "{autoscaling: {enabled: true, minReplicas: 7}, secret: {name: s}}",
            "autoscaling.minReplicas: is 7, must be at most `maxReplicas`, which is 6",
        ),
        (
            "{secret: {name: s, values: {key-secret: k}}}",
            "secret: has both `name` and `values`, of which only one is used; remove one of them",
        ),
        (
            "{monitoring: {serviceMonitor: {enabled: true}}}",
            "monitoring.serviceMonitor.enabled: is true, but /metrics needs a token; run `slidegate token new --name \
             prometheus --scope read`, and give its line in the key `admin-tokens` of the Secret",
        ),
        (
            "{config: {grpc: {listen: '0.0.0.0:9000'}}}",
            "config.grpc.listen: is `0.0.0.0:9000`, must have the port of the Service, `0.0.0.0:8081`",
        ),
    ] {
        let output = template(&chart(), values);
        assert!(!output.status.success(), "{values}");
        let said = text(&output.stderr);
        assert!(said.lines().any(|line| line.ends_with(&format!(": {expected}"))), "{values}: {said}");
    }
    for values in [
        "{replicas: 3, config: {store: {redis: 'redis://r'}}}",
        "{replicas: 3, secret: {values: {redis-url: u}}}",
    ] {
        let pod = objects(values)["Deployment slidegate"]["spec"]["template"]["spec"].clone();
        let auto = json!({ "name": "SLIDEGATE_INSTANCES", "value": "auto" });
        assert!(pod["containers"][0]["env"].as_array().unwrap().contains(&auto), "{values}: {pod}");
    }
}

/// Helm itself ignores values that it does not know.
#[test]
fn values_that_are_misspelt_or_of_another_type_are_rejected() {
    for (values, expected) in [
        ("{replicaCount: 3}", "at '': additional properties 'replicaCount' not allowed"),
        (
            "{secret: {values: {redis-uri: u}}}",
            "at '/secret/values': additional properties 'redis-uri' not allowed",
        ),
        ("{replicas: '3'}", "at '/replicas': got string, want integer"),
        ("{autoscaling: {enabled: 'yes'}}", "at '/autoscaling/enabled': got string, want boolean"),
        ("{maxBytes: 128M}", "at '/maxBytes': '128M' does not match pattern"),
        ("{secret: {name: s, keys: [redis]}}", "at '/secret/keys/0': value must be one of"),
        ("{networkPolicy: {clients: {}}}", "at '/networkPolicy/clients': got object, want array"),
    ] {
        let output = template(&chart(), values);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{values}: {said}");
    }
}

/// A value that the schema lacks cannot be set, and one without a comment is not understood.
#[test]
fn every_value_is_explained_used_and_in_the_schema() {
    let (values, text) = (parse(&read("values.yaml")), read("values.yaml"));
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let templates: String = fs::read_dir(chart().join("templates"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let keys = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let mut objects = vec![(String::new(), &values, &schema)];
    while let Some((path, object, schema)) = objects.pop() {
        let mut known = keys(&schema["properties"]);
        // Of a parent chart.
        known.remove("global");
        // Those of a Secret are values of the user.
        if path != ".secret.values" {
            assert_eq!(keys(object), known, "{path}");
        }
        for (key, value) in object.as_object().unwrap() {
            assert!(templates.contains(&format!(".{key}")), "{path}.{key} is not used");
            let schema = &schema["properties"][key];
            if schema.get("properties").is_some() {
                objects.push((format!("{path}.{key}"), value, schema));
            }
        }
    }
    let lines: Vec<_> = text.lines().collect();
    for key in keys(&values) {
        let at = lines.iter().position(|line| line.starts_with(&format!("{key}:"))).unwrap();
        assert!(lines[at - 1].starts_with("# "), "{key} has no comment");
    }
}

/// Links to files outside of the chart are nothing once it is copied to another machine.
#[test]
fn a_package_has_the_dashboard_and_the_alerts() {
    let folder = TempDir::new("helm-package");
    let package = helm(&["package", chart().to_str().unwrap(), "--destination", folder.as_str()]);
    assert!(package.status.success(), "{}", text(&package.stderr));
    let archive = format!("{}/slidegate-{}.tgz", folder.as_str(), env!("CARGO_PKG_VERSION"));
    let output = template(Path::new(&archive), EVERYTHING);
    let all = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let objects = by_name(all.trim_start_matches("---\n").split("\n---\n").map(parse));
    let alerts = fs::read_to_string(chart().join("../../prometheus/alerts.yml")).unwrap();
    let alerts = alerts.replace("docs/runbooks.md#", "https://wiki.example/slidegate#");
    assert_eq!(objects["PrometheusRule limits"]["spec"], parse(&alerts));
    assert_eq!(
        parse(objects["ConfigMap limits-rules"]["data"]["alerts.yml"].as_str().unwrap()),
        parse(&alerts)
    );
    let dashboard = fs::read_to_string(chart().join("../../grafana/slidegate.json")).unwrap();
    assert_eq!(
        objects["ConfigMap limits-dashboard"]["data"]["slidegate.json"].as_str().unwrap().trim(),
        dashboard.trim()
    );
    let of_chart = parse(&read("Chart.yaml"));
    assert_eq!(of_chart["appVersion"], env!("CARGO_PKG_VERSION"), "the image that the chart names");
}

/// The first thing that anybody does with a chart.
#[test]
fn a_pod_of_the_default_values_starts_and_decides() {
    let objects = objects("");
    let container = &objects["Deployment slidegate"]["spec"]["template"]["spec"]["containers"][0];
    let volumes = Volumes::new("unused");
    volumes.publish("1", &config_of(&objects["ConfigMap slidegate"]));
    let variables = volumes.variables(container);
    let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(container["args"], json!(["serve"]));
    let server = Server::start_with(&[], &variables);
    let answer = server.post("/v1/check", &json!({ "attributes": { "user": "alice" } }).to_string());
    assert_eq!(answer.json()["remaining"], 99, "{}", answer.body);
}
