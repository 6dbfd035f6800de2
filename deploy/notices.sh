#!/usr/bin/env bash
# The licences of what the programs contain besides our own, one after the other: those that Debian
# states for its libraries, and those of third_party.
#
#   notices.sh OUT LICENSE...
set -euo pipefail
out=$1
shift

packages=(libabsl-dev libc-ares-dev libevent-dev libfmt-dev libgrpc++-dev libprotobuf-dev libre2-dev
  libspdlog-dev libssl-dev libstdc++-12-dev nlohmann-json3-dev zlib1g-dev)

# HEADING FILE
add() {
  [ -s "$2" ] || { echo "notices.sh: there is no $2" >&2; exit 1; }
  printf '%s\n%s\n%s\n\n' "${1//?/=}" "$1" "${1//?/=}"
  cat "$2"
  printf '\n\n'
}

{
  echo 'Torpor is under the Apache License, Version 2.0. Its programs and libraries contain code of others,'
  echo 'or, where a section is of a source package as a whole, may contain it. These are its licences.'
  echo
  for package in "${packages[@]}"; do add "$package" "/usr/share/doc/$package/copyright"; done
  for license; do
    name=${license#*third_party/}
    add "${name%/LICENSE}" "$license"
  done
} > "$out"
