# `nix run . -- serve` runs the service, `nix profile install .` installs it with its man pages and completions.
{
  description = "An exact sliding-window rate limiter: a library and a service";

  # Rust 1.89 or later.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" "x86_64-darwin" "aarch64-darwin" ];
      forAllSystems = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      manifest = builtins.fromTOML (builtins.readFile ./Cargo.toml);
    in
    {
      packages = forAllSystems (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "slidegate";
          version = manifest.workspace.package.version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          buildType = "dist"; # the profile
          cargoBuildFlags = [ "--package" "slidegate-server" ];
          # They start servers, browsers and proxies: scripts/test runs them.
          doCheck = false;
          env.SLIDEGATE_REVISION = self.rev or "unknown";
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            $out/bin/slidegate generate man man1
            installManPage man1/*.1
            for shell in bash fish zsh; do
              $out/bin/slidegate generate completions $shell > slidegate.$shell
            done
            installShellCompletion slidegate.{bash,fish,zsh}
          '';
          meta = {
            description = manifest.workspace.package.description;
            license = with pkgs.lib.licenses; [ mit asl20 ];
            mainProgram = "slidegate";
          };
        };
      });
    };
}
