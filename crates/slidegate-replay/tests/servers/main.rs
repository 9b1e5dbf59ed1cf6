//! Access logs as servers write them: each server is sent the same requests, and what it logged of
//! them is read.
//!
//! Every test starts a server on loopback, and ends it. `scripts/test` installs the servers.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod server;

use server::{Log, Running, Seen, package};

use slidegate_testkit::process::command;
use slidegate_testkit::service::installed;

const NGINX: &str = r#"
pid nginx.pid; daemon off; master_process off;
events {}
http {
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    log_format timed '$remote_addr $remote_user $msec $request_time $host "$request" $status "$http_user_agent"';
    log_format json escape=json '{"time_iso8601":"$time_iso8601","remote_addr":"$remote_addr",'
        '"remote_user":"$remote_user","request":"$request","status":"$status","host":"$host",'
        '"http_user_agent":"$http_user_agent"}';
    access_log combined.log;
    access_log timed.log timed;
    access_log json.log json;
    server { listen 127.0.0.1:{port}; location / { return 200 ok; } }
}
"#;

/// Most logs are of this server, and most of them in its own format.
#[test]
fn nginx_logs_are_read_as_the_requests_were_sent() {
    let format =
        "nginx:$remote_addr $remote_user $msec $request_time $host \"$request\" $status \"$http_user_agent\"";
    let logs = [
        Log::of("combined.log", "combined", Seen { host: false, ..Seen::ALL }),
        Log { given: Some(format), ..Log::of("timed.log", "nginx", Seen::ALL) },
        Log::of("json.log", "json", Seen::ALL),
    ];
    Running::start("nginx-light", &[("nginx.conf", NGINX)], &logs, |_| {
        let mut command = command("nginx");
        command.args(["-p", ".", "-e", "error.log", "-c", "nginx.conf"]);
        command
    })
    .assert_logs();
}

const APACHE: &str = r#"
ServerRoot "{dir}"
ServerName shop.example
Listen 127.0.0.1:{port}
PidFile apache.pid
ErrorLog error.log
User nobody
Group nogroup
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
DocumentRoot "{dir}"
LogFormat "%h %l %u %t \"%r\" %>s %b" common
LogFormat "%h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\"" combined
LogFormat "%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\"" vhost_combined
CustomLog common.log common
CustomLog combined.log combined
CustomLog vhost.log vhost_combined
"#;

/// Its formats, as Debian's `apache2.conf` has them, are what others imitate.
#[test]
fn apache_logs_are_read_as_the_requests_were_sent() {
    let seen = Seen { user: false, host: false, ..Seen::ALL };
    let logs = [
        Log::of("common.log", "common", Seen { agent: false, ..seen }),
        Log::of("combined.log", "combined", seen),
        Log::of("vhost.log", "combined", Seen { host: true, ..seen }),
    ];
    Running::start("apache2-bin", &[("apache.conf", APACHE)], &logs, |dir| {
        let mut command = command("/usr/sbin/apache2");
        // One process, which is the one that is ended.
        command.arg("-X").arg("-f").arg(dir.join("apache.conf"));
        command
    })
    .assert_logs();
}

const CADDY: &str = "{
	admin off
	auto_https off
}
http://:{port} {
	bind 127.0.0.1
	log {
		output file access.log
	}
	respond ok
}
";

/// Caddy writes JSON of its own.
#[test]
fn caddy_logs_are_read_as_the_requests_were_sent() {
    let logs = [Log::of("access.log", "caddy", Seen { user: false, ..Seen::ALL })];
    Running::start("caddy", &[("Caddyfile", CADDY)], &logs, |dir| {
        let mut command = command("caddy");
        command.args(["run", "--adapter", "caddyfile", "--config", "Caddyfile"]);
        command.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
        command
    })
    .assert_logs();
}

const TRAEFIK: &str = "
entryPoints: {web: {address: '127.0.0.1:{port}'}}
accessLog: {filePath: access.log, format: {format}, fields: {headers: {names: {User-Agent: keep}}}}
";

/// Traefik has a format of its own, and one of JSON.
#[test]
fn traefik_logs_are_read_as_the_requests_were_sent() {
    for (format, detected, host) in [("common", "traefik", false), ("json", "traefik-json", true)] {
        let config = TRAEFIK.replace("{format}", format);
        let logs = [Log::of("access.log", detected, Seen { user: false, host, agent: true })];
        Running::start(package::TRAEFIK, &[("traefik.yml", &config)], &logs, |_| {
            let mut command = command(installed("python/bin/traefik"));
            command.arg("--configFile=traefik.yml");
            command
        })
        .assert_logs();
    }
}

const ENVOY: &str = r#"
static_resources:
  listeners:
    - address: { socket_address: { address: 127.0.0.1, port_value: {port} } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: http
                delayed_close_timeout: 0s
                access_log:
                  - name: envoy.access_loggers.file
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: text.log
                  - name: envoy.access_loggers.file
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: json.log
                      log_format:
                        json_format:
                          start_time: "%START_TIME%"
                          method: "%REQ(:METHOD)%"
                          path: "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"
                          protocol: "%PROTOCOL%"
                          response_code: "%RESPONSE_CODE%"
                          bytes_sent: "%BYTES_SENT%"
                          duration: "%DURATION%"
                          x_forwarded_for: "%REQ(X-FORWARDED-FOR)%"
                          user_agent: "%REQ(USER-AGENT)%"
                          authority: "%REQ(:AUTHORITY)%"
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: { prefix: / }
                          direct_response: { status: 200, body: { inline_string: ok } }
"#;

/// Envoy escapes nothing in its own format, and Istio's log is the same in JSON.
#[test]
fn envoy_logs_are_read_as_the_requests_were_sent() {
    let seen = Seen { user: false, ..Seen::ALL };
    let logs = [Log::of("text.log", "envoy", seen), Log::of("json.log", "envoy-json", seen)];
    Running::start(package::ENVOY, &[("envoy.yaml", ENVOY)], &logs, |_| {
        let mut command = command(installed("python/bin/envoy"));
        command.args(["--disable-hot-restart", "--concurrency", "1", "-l", "warning"]);
        command.args(["--file-flush-interval-msec", "50", "-c", "envoy.yaml"]);
        command
    })
    .assert_logs();
}

const HAPROXY: &str = "
global
    # Several threads may log requests in another order than that of their arrival.
    nbthread 1
    log stdout format raw local0
    log stdout format rfc3164 local0
    log stdout format rfc5424 local0
defaults
    mode http
    log global
    option httplog
    option dontlognull
    timeout client 60s
frontend web
    bind 127.0.0.1:{port}
    http-request return status 200 content-type text/plain string ok
";

/// HAProxy's log is in syslog, and on standard output in containers.
#[test]
fn haproxy_logs_are_read_as_the_requests_were_sent() {
    let seen = Seen { user: false, host: false, agent: false };
    let target = |format: &str| {
        let lines: Vec<_> = HAPROXY
            .lines()
            .filter(|line| !line.contains("log stdout") || line.contains(&format!(" {format} ")))
            .collect();
        lines.join("\n") + "\n"
    };
    for (format, detected) in
        [("raw", "haproxy"), ("rfc3164", "haproxy in syslog"), ("rfc5424", "haproxy in syslog")]
    {
        let logs = [Log::of(server::OUTPUT, detected, seen)];
        Running::start("haproxy", &[("haproxy.cfg", &target(format))], &logs, |_| {
            let mut command = command("/usr/sbin/haproxy");
            command.args(["-db", "-f", "haproxy.cfg"]);
            command
        })
        .assert_logs();
    }
}
