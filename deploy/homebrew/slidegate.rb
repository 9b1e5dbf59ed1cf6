# The formula for a Homebrew tap. The address is a placeholder, and the checksum is that of a release's source archive:
# docs/releasing.md.
class Slidegate < Formula
  desc "Exact sliding-window rate limiter, as a service and command-line tool"
  homepage "https://example.com/slidegate"
  url "https://example.com/slidegate/archive/refs/tags/v0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "rust" => :build

  def install
    system "cargo", "install", "--profile", "dist", *std_cargo_args(path: "crates/slidegate-server")
    generate_completions_from_executable(bin/"slidegate", "generate", "completions")
    system bin/"slidegate", "generate", "man", buildpath/"man"
    man1.install Dir["man/*.1"]
    system bin/"slidegate", "init", buildpath/"slidegate.yaml"
    (etc/"slidegate").install "slidegate.yaml"
  end

  service do
    run [opt_bin/"slidegate", "serve", "--config", etc/"slidegate/slidegate.yaml"]
    keep_alive true
    log_path var/"log/slidegate.log"
    error_log_path var/"log/slidegate.log"
  end

  test do
    address = "127.0.0.1:#{free_port}"
    pid = spawn bin/"slidegate", "serve", "--listen", address
    sleep 2
    system bin/"slidegate", "health", "--listen", address
    assert_match "allowed", shell_output("#{bin}/slidegate check user=alice --url http://#{address}")
  ensure
    Process.kill "TERM", pid
    Process.wait pid
  end
end
