#!/usr/bin/env bash
# Installs what is missing, and only that: Debian packages and the judges' tools from crates.io.
# Quick when all is there.
#
#   scripts/install-deps.sh --demo       what `make demo` needs
#   scripts/install-deps.sh --demo-s3    what `make demo-s3` needs
#   scripts/install-deps.sh --docs       what `make docs` needs: mdbook, which compiles for minutes; CI does without
#   scripts/install-deps.sh --hadoop     what `make hadoop` and suite `hadoop` need: a JDK and Maven
#   scripts/install-deps.sh --deb        what `make deb` needs
#   scripts/install-deps.sh --csi        what the suite csi needs: csi-sanity, by Go
#   scripts/install-deps.sh --test       what `make test` needs: all but the tree of files of the demos
#   scripts/install-deps.sh              all of these but --docs, --hadoop and --csi
#
# Needs root for apt-get. Tools go to $KESTREL_TOOLS (default ~/.cache/kestrel-tools), never into
# the repository.
set -euo pipefail

TOOLS=${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}
what=${1:-all}
demo_packages=(gcc libc6-dev python3 fuse3 xz-utils util-linux procps)
deb_packages=(gcc libc6-dev binutils dpkg-dev)
test_packages=(xfsprogs e2fsprogs iproute2 iptables rsync sqlite3 git stress-ng fio acl attr tar \
    python3-venv python3-pip shellcheck curl litmus nfs-ganesha nfs-ganesha-vfs libnfs13 \
    g++ pkg-config openssl postgresql etcd-server man-db systemd systemd-container debootstrap \
    "${deb_packages[@]}")
# Judges: exact versions, built with their own lock files.
tools=(pjdfstest@0.2.2 fsx@0.3.2)
# The object store of the tests and of demo-s3: a real HTTP S3 server with conditional puts that are
# atomic.
versitygw=v1.8.0
# The judge of drivers for containers.
csi_sanity=v5.3.1
# The site of the documentation.
mdbook=0.5.4

# install_tool NAME VERSION [OPTION…]: a program of crates.io, built with its own lock file.
install_tool() {
    local name=$1 version=$2
    shift 2
    if [ ! -x "$TOOLS/bin/$name" ] || [ ! -e "$TOOLS/$name-$version" ]; then
        echo "building $name $version"
        CARGO_TARGET_DIR="$TOOLS/target" cargo install --quiet --locked --root "$TOOLS" "$name" \
            --version "$version" "$@"
        touch "$TOOLS/$name-$version"
    fi
}

if [ "$what" = --docs ]; then
    install_tool mdbook "$mdbook" --no-default-features --features search
    exit
fi

# install_packages PACKAGE…: those of Debian's that are missing.
install_packages() {
    local package service missing=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    # Tests run servers of their own; those that come with packages stay out of their way.
    for service in etcd nfs-ganesha; do
        if [[ " ${missing[*]} " == *" $service"* ]] && command -v systemctl >/dev/null; then
            systemctl disable --now "$service" >/dev/null 2>&1 || true
        fi
    done
}

if [ "$what" = --hadoop ]; then
    command -v javac >/dev/null || install_packages default-jdk-headless
    command -v mvn >/dev/null || install_packages maven
    exit
fi
if [ "$what" = --deb ]; then
    install_packages "${deb_packages[@]}"
    exit
fi

packages=("${demo_packages[@]}")
case $what in
    --demo) ;;
    --demo-s3) packages+=(curl) ;;
    --csi) packages=() ;;
    *) packages+=("${test_packages[@]}") ;;
esac

install_packages "${packages[@]}"

# A real tree of small files, for the demos: the kernel's sources, as Debian ships them. Downloaded,
# not installed: it takes 140 MB.
tree=$TOOLS/tree
if [ "$what" != --test ] && [ "$what" != --csi ] && [ ! -e "$tree/.complete" ]; then
    echo "unpacking a tree of small files (Debian's linux-source-6.1)"
    mkdir -p "$TOOLS/download"
    (
        cd "$TOOLS/download"
        apt-get download -qq linux-source-6.1 2>/dev/null ||
            { apt-get update -qq && apt-get download -qq linux-source-6.1; }
    )
    rm -rf "$tree" "$TOOLS/download/unpacked"
    dpkg-deb -x "$TOOLS"/download/linux-source-6.1_*.deb "$TOOLS/download/unpacked"
    mkdir -p "$tree"
    tar -xJf "$TOOLS"/download/unpacked/usr/src/linux-source-6.1.tar.xz -C "$tree"
    rm -rf "$TOOLS/download"
    touch "$tree/.complete"
fi

# install_go_tool MODULE VERSION: with Go 1.21 or newer, which fetches the version that the module
# wants by itself.
install_go_tool() {
    local go name
    name=$(basename "$1")
    PATH=$PATH:/usr/local/go/bin
    if ! command -v go >/dev/null; then
        echo "installing: golang"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends golang \
            >/dev/null || true
    fi
    go=$(go env GOVERSION 2>/dev/null || true)
    if [ "$(printf '%s\n' go1.21 "${go:-go0}" | sort -V | head -n 1)" != go1.21 ]; then
        echo "$name needs Go 1.21 or newer; found: ${go:-none}. Install it from https://go.dev/dl (or Debian's backports)" >&2
        exit 1
    fi
    echo "building $name $2 (some minutes)"
    mkdir -p "$TOOLS/bin"
    GOBIN=$TOOLS/bin GOTOOLCHAIN=auto go install "$1@$2"
    touch "$TOOLS/$name-$2"
}

if [ "$what" = --csi ]; then
    if [ ! -x "$TOOLS/bin/csi-sanity" ] || [ ! -e "$TOOLS/csi-sanity-$csi_sanity" ]; then
        install_go_tool github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity "$csi_sanity"
    fi
    exit
fi

if [ "$what" != --demo ] &&
    { [ ! -x "$TOOLS/bin/versitygw" ] || [ ! -e "$TOOLS/versitygw-$versitygw" ]; }; then
    install_go_tool github.com/versity/versitygw/cmd/versitygw "$versitygw"
fi

if [ "$what" = all ] || [ "$what" = --test ]; then
    for tool in "${tools[@]}"; do install_tool "${tool%@*}" "${tool#*@}"; done
    # pjdfstest switches to this user.
    id tests >/dev/null 2>&1 || useradd --no-create-home --shell /usr/sbin/nologin tests
    getent group nogroup >/dev/null || groupadd nogroup
fi
