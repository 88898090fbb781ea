#!/usr/bin/env python3
"""Structure of deploy/kubernetes: what refers to something refers to what is there.

csi_manifests.py KESTREL DIR: prints a line for each check, and the summary. It knows of each kind
the fields that Kubernetes demands, no more: the tests have no schema of Kubernetes.
"""

import pathlib
import re
import subprocess
import sys

import yaml

KESTREL, DIR = sys.argv[1], pathlib.Path(sys.argv[2])
DRIVER = "csi.kestrelfs.io"
API = {
    "Namespace": "v1",
    "ServiceAccount": "v1",
    "Pod": "v1",
    "PersistentVolume": "v1",
    "PersistentVolumeClaim": "v1",
    "CSIDriver": "storage.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "Deployment": "apps/v1",
    "DaemonSet": "apps/v1",
    "VolumeSnapshotClass": "snapshot.storage.k8s.io/v1",
    "VolumeSnapshot": "snapshot.storage.k8s.io/v1",
}
passed = failed = 0


def check(text: str, is_so: bool, why: object = "") -> None:
    """One line of the report."""
    global passed, failed
    passed, failed = passed + is_so, failed + (not is_so)
    print(f"ok   {text}" if is_so else f"FAIL {text}: {why}")


def one(kind: str, name: str) -> dict:
    """The object of this kind and name; empty if there is none."""
    found = [it for it in objects if it["kind"] == kind and it["metadata"]["name"] == name]
    check(f"{kind} {name} is there, once", len(found) == 1, found)
    return found[0] if found else {}


def check_pods(name: str, workload: dict, flags: set[str]) -> None:
    """Labels, volumes and arguments of a workload's pods."""
    spec, template = workload["spec"], workload["spec"]["template"]
    labels = template["metadata"]["labels"]
    check(f"{name} selects its pods", spec["selector"]["matchLabels"] == labels, labels)
    pod = template["spec"]
    one("ServiceAccount", pod["serviceAccountName"])
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        check(f"{name}, {container['name']}: its volumes are there", mounts <= volumes, mounts)
        check(f"{name}, {container['name']}: an image", bool(container["image"]))
    driver = next(it for it in pod["containers"] if it["name"] == "driver")
    check(f"{name} runs kestrel csi", driver["args"][0] == "csi")
    given = {word.split("=")[0] for word in driver["args"][1:]}
    check(f"{name}: the flags are those of the program", given <= flags, given - flags)
    check(f"{name}: those without a default are there",
          {"--endpoint", "--node-id", "--url"} <= given, given)
    check(f"{name}: /dev/fuse, with privileges", driver["securityContext"]["privileged"]
          and any(mount["mountPath"] == "/dev/fuse" for mount in driver["volumeMounts"]))


objects = [
    it for file in sorted(DIR.glob("*.yaml")) for it in yaml.safe_load_all(file.read_text()) if it
]
for it in objects:
    name = f"{it.get('kind')} {it.get('metadata', {}).get('name')}"
    check(f"{name}: its version", API.get(it.get("kind")) == it.get("apiVersion"), it)
    check(f"{name}: a name that may be",
          bool(re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", it["metadata"]["name"])))
text = subprocess.run([KESTREL, "csi", "--help"], capture_output=True, text=True, check=True)
FLAGS = set(re.findall(r"--[a-z-]+", text.stdout))
one("CSIDriver", DRIVER)
check_pods("the controller", one("Deployment", "kestrel-csi-controller"), FLAGS)
check_pods("the node", one("DaemonSet", "kestrel-csi-node"), FLAGS)
nodes = one("DaemonSet", "kestrel-csi-node")["spec"]["template"]["spec"]["containers"][0]
both_ways = {mount["mountPath"] for mount in nodes["volumeMounts"]
             if mount.get("mountPropagation") == "Bidirectional"}
check("kubelet sees the mounts", "/var/lib/kubelet" in both_ways, both_ways)
for it in objects:
    for key in ("provisioner", "driver"):
        if key in it:
            check(f"{it['kind']}: the driver's name", it[key] == DRIVER, it[key])
    if it["kind"] == "PersistentVolume":
        check("a static volume: the driver's name", it["spec"]["csi"]["driver"] == DRIVER)
    if it["kind"] == "PersistentVolumeClaim":
        one("StorageClass", it["spec"]["storageClassName"])
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
