#!/bin/sh
# Debian's Prometheus, unpacked into the folder $1 without root; nothing of the system is changed.
set -eu
target=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
apt() {
    apt-get -qq -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" \
        -o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 "$@"
}
cd "$work"
apt update
apt download prometheus
dpkg-deb --extract prometheus_*.deb "$work/root"
"$work/root/usr/bin/prometheus" --version >/dev/null 2>&1
mkdir -p "$target"
mv "$work/root/usr/bin/promtool" "$work/root/usr/bin/prometheus" "$target/"
