#!/usr/bin/env bash
# A Python environment on the mount: venv, pip install of a wheel made on the spot, import,
# bytecode, a zip import.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
# Debian's own interpreter, whatever else is on the path: it brings the wheels of pip.
python=/usr/bin/python3

# A wheel is a zip with three metadata files: no build tool, no network.
"$python" - "$WORK" <<'PY'
import base64, hashlib, sys, zipfile
name = f"{sys.argv[1]}/kestreldemo-1.0-py3-none-any.whl"
files = {f"kestreldemo/module{i}.py": f"VALUE = {i}\n" * (i + 1) for i in range(200)}
files["kestreldemo/__init__.py"] = "from . import module7\nANSWER = module7.VALUE * 6\n"
files["kestreldemo-1.0.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: kestreldemo\nVersion: 1.0\n"
files["kestreldemo-1.0.dist-info/WHEEL"] = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
record = ""
for path, text in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    record += f"{path},sha256={digest},{len(text)}\n"
files["kestreldemo-1.0.dist-info/RECORD"] = record + "kestreldemo-1.0.dist-info/RECORD,,\n"
with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as wheel:
    for path, text in files.items():
        wheel.writestr(path, text)
PY
wheel=$WORK/kestreldemo-1.0-py3-none-any.whl
imports() {
    "$mnt/venv/bin/python" -c 'import kestreldemo as k, importlib as i
assert k.ANSWER == 42
assert sum(i.import_module(f"kestreldemo.module{n}").VALUE for n in range(200)) == 19900'
}
zip_import() {
    cp "$wheel" "$mnt/demo.zip"
    PYTHONPATH=$mnt/demo.zip "$python" \
        -c 'import kestreldemo; assert kestreldemo.__file__.startswith("'"$mnt"'")'
}
check "venv" "$python" -m venv "$mnt/venv"
check "pip install" "$mnt/venv/bin/pip" install -q --no-index --no-deps "$wheel"
check "import of 200 modules" imports
check "import again, from bytecode" imports
check "pip check" "$mnt/venv/bin/pip" check
check "import from a zip" zip_import
check "pip uninstall" "$mnt/venv/bin/pip" uninstall -q -y kestreldemo
check "compileall" "$mnt/venv/bin/python" -m compileall -q "$mnt/venv/lib"
close_and_check "$volume" "$mnt"
summary
