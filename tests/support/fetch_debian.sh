#!/bin/sh
# Unpacks Debian's packages $2 and puts their programs $3 into the folder $1, without root; nothing of the system is
# changed. BACKPORTS=1 also looks into the backports of this machine's release.
set -eu
target=$1 packages=$2 programs=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root" "$target/bin" "$target/lib"
: >"$work/sources.list"
if [ "${BACKPORTS:-}" = 1 ]; then
    . /etc/os-release
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian" \
        "$VERSION_CODENAME-backports main" >"$work/sources.list"
fi
apt() {
    apt-get -qq -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Dir::Etc::SourceList="$work/sources.list" \
        -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=2 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 "$@"
}
cd "$work"
apt update
# shellcheck disable=SC2086 # Both are lists.
apt download $packages
for package in *.deb; do dpkg-deb --extract "$package" root; done
find root -name 'lib*.so*' -exec cp -P {} "$target/lib" \;
for program in $programs; do
    cp -L "root/usr/bin/$program" "$target/bin/$program"
    # The libraries of its packages are this program's alone.
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s/lib" exec "%s/bin/%s" "$@"\n' "$target" "$target" "$program" >"$target/$program"
    chmod +x "$target/$program"
    "$target/$program" --version >/dev/null 2>&1
done
