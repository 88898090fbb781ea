#!/usr/bin/env python3
"""What a container gets of `kestrel csi`: files, quotas, clones, snapshots, mounts that outlast it.

csi_calls.py STUBS SOCKET WORK URL STEP

STUBS is where grpc_tools.protoc has put csi_pb2. STEP is `before` or `after`: between the two the
driver was killed and started again. Prints a line for each check, and the summary.
"""

import errno
import os
import sys

sys.path.insert(0, sys.argv[1])
import csi_pb2 as csi  # noqa: E402
import csi_pb2_grpc as services  # noqa: E402
import grpc  # noqa: E402

SOCKET, WORK, URL, STEP = sys.argv[2:6]
MIB = 1 << 20
# By default the socket's path is its authority, which is none by HTTP's rules. Go says this.
channel = grpc.insecure_channel(
    f"unix://{SOCKET}", options=[("grpc.default_authority", "localhost")]
)
controller = services.ControllerStub(channel)
node = services.NodeStub(channel)
passed = failed = 0


def check(text: str, is_so: bool, why: object = "") -> None:
    """One line of the report."""
    global passed, failed
    if is_so:
        passed += 1
        print(f"ok   {text}")
    else:
        failed += 1
        print(f"FAIL {text}: {why}")


def refused(text: str, code: grpc.StatusCode, call, request) -> None:
    """The call fails with this code."""
    try:
        answer = call(request)
        check(text, False, f"it did not fail: {answer}")
    except grpc.RpcError as why:
        check(text, why.code() == code, why)


def capability(mode: str = "MULTI_NODE_MULTI_WRITER") -> csi.VolumeCapability:
    """A mount with this access mode."""
    kind = csi.VolumeCapability
    return kind(mount=kind.MountVolume(), access_mode=kind.AccessMode(mode=mode))


def create(name: str, size: int = 0, source=None) -> csi.Volume:
    """A volume of at least this size."""
    request = csi.CreateVolumeRequest(
        name=name,
        capacity_range=csi.CapacityRange(required_bytes=size),
        volume_capabilities=[capability()],
        volume_content_source=source,
    )
    return controller.CreateVolume(request).volume


def stage_request(volume: str, context: dict, mode: str) -> csi.NodeStageVolumeRequest:
    """A request that stages a volume in a directory of its own."""
    return csi.NodeStageVolumeRequest(
        volume_id=volume,
        staging_target_path=f"{WORK}/staged/{volume}",
        volume_capability=capability(mode),
        volume_context=context,
    )


def mounted(
    volume: str,
    context: dict,
    readonly: bool = False,
    mode: str = "MULTI_NODE_MULTI_WRITER",
    name: str = "",
) -> str:
    """Stages and publishes a volume, each of them twice, and returns where."""
    stage = stage_request(volume, context, mode)
    target = f"{WORK}/pods/{name or volume}"
    publish = csi.NodePublishVolumeRequest(
        volume_id=volume,
        staging_target_path=stage.staging_target_path,
        target_path=target,
        volume_capability=stage.volume_capability,
        readonly=readonly,
    )
    for _ in range(2):
        node.NodeStageVolume(stage)
    for _ in range(2):
        node.NodePublishVolume(publish)
    return target


def unpublished(volume: str, name: str = "") -> None:
    """Takes a publication back."""
    target = f"{WORK}/pods/{name or volume}"
    request = csi.NodeUnpublishVolumeRequest(volume_id=volume, target_path=target)
    node.NodeUnpublishVolume(request)
    node.NodeUnpublishVolume(request)


def unstaged(volume: str) -> None:
    """Takes the staging back."""
    request = csi.NodeUnstageVolumeRequest(
        volume_id=volume, staging_target_path=f"{WORK}/staged/{volume}"
    )
    node.NodeUnstageVolume(request)
    node.NodeUnstageVolume(request)


def write(path: str, text: bytes) -> int:
    """Writes a file; the error's number, or 0."""
    try:
        with open(path, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return 0
    except OSError as why:
        return why.errno or -1


def read(path: str) -> bytes:
    """A file's bytes; empty if it is not there."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def processes() -> int:
    """How many KestrelFS mounts the driver has."""
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        return sum(f" {WORK}/state/mounts/" in line for line in lines)


def before() -> None:
    """All but the end."""
    one = create("one", 8 * MIB)
    check("a volume has the size that was wanted", one.capacity_bytes == 8 * MIB, one)
    check("created again it is the same", create("one", 8 * MIB) == one)
    pod = mounted("one", dict(one.volume_context))
    check("a container writes a file", write(f"{pod}/file", b"first") == 0)
    error = write(f"{pod}/large", bytes(16 * MIB))
    check("not more than the quota", error in (errno.EDQUOT, errno.ENOSPC), error)
    os.unlink(f"{pod}/large")
    stats = node.NodeGetVolumeStats(
        csi.NodeGetVolumeStatsRequest(volume_id="one", volume_path=pod)
    )
    total = next(usage.total for usage in stats.usage if usage.unit == csi.VolumeUsage.BYTES)
    check("its size is that of the quota", 0 < total <= 8 * MIB, total)
    grown = controller.ControllerExpandVolume(
        csi.ControllerExpandVolumeRequest(
            volume_id="one", capacity_range=csi.CapacityRange(required_bytes=64 * MIB)
        )
    )
    check("it grows while it is used", grown.capacity_bytes == 64 * MIB, grown)
    check("then the file fits", write(f"{pod}/large", bytes(16 * MIB)) == 0)

    snapshot = controller.CreateSnapshot(
        csi.CreateSnapshotRequest(source_volume_id="one", name="monday")
    ).snapshot
    check("a file changes after a snapshot", write(f"{pod}/file", b"second") == 0)
    kind = csi.VolumeContentSource
    source = kind(snapshot=kind.SnapshotSource(snapshot_id=snapshot.snapshot_id))
    restored = create("restored", 64 * MIB, source)
    pod_restored = mounted("restored", dict(restored.volume_context))
    check("a volume from the snapshot has the old file", read(f"{pod_restored}/file") == b"first")
    check("it is written", write(f"{pod_restored}/file", b"third") == 0)
    check("which the source does not see", read(f"{pod}/file") == b"second")
    source = kind(volume=kind.VolumeSource(volume_id="one"))
    clone = create("clone", 64 * MIB, source)
    pod_clone = mounted("clone", dict(clone.volume_context), readonly=True)
    check("a clone has the present file", read(f"{pod_clone}/file") == b"second")
    check("published read-only nobody writes it", write(f"{pod_clone}/x", b"x") == errno.EROFS)
    mounted("one", dict(one.volume_context), readonly=True, name="reader")
    check("beside a writer one reads", read(f"{WORK}/pods/reader/file") == b"second")
    check("and does not write", write(f"{WORK}/pods/reader/x", b"x") == errno.EROFS)
    check("one process has all of them mounted", processes() == 1, processes())

    static = {"url": f"{URL}:/csi/one@monday"}
    pod_static = mounted("by-hand", static, mode="MULTI_NODE_READER_ONLY")
    check("a snapshot is a static volume", read(f"{pod_static}/file") == b"first")
    check("which nobody writes", write(f"{pod_static}/x", b"x") == errno.EROFS)
    check("it has a process of its own", processes() == 2, processes())
    pod_whole = mounted("whole", {"url": URL})
    check("a KestrelFS volume is one, too", read(f"{pod_whole}/csi/one/file") == b"second")

    no = grpc.StatusCode
    refused("a volume with snapshots is not deleted", no.FAILED_PRECONDITION,
            controller.DeleteVolume, csi.DeleteVolumeRequest(volume_id="one"))
    for volume in ["../etc", "a/b", ".", "one@monday", "pvc-of-another-driver", "x" * 300]:
        refused(f"staged by the id {volume[:24]!r} there is nothing", no.NOT_FOUND,
                node.NodeStageVolume, stage_request(volume, {}, "SINGLE_NODE_WRITER"))
        controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=volume))
    for path in ["../../etc", "csi/../..", "csi/./one"]:
        refused(f"the path {path!r} leads nowhere", no.INVALID_ARGUMENT, node.NodeStageVolume,
                stage_request("bad", {"url": URL, "dir": path}, "SINGLE_NODE_WRITER"))
    os.symlink("/etc", f"{pod_whole}/csi/link")
    refused("nor does a symbolic link", no.INVALID_ARGUMENT, node.NodeStageVolume,
            stage_request("bad", {"url": URL, "dir": "csi/link"}, "SINGLE_NODE_WRITER"))
    os.unlink(f"{pod_whole}/csi/link")
    refused("a server that is not there", no.UNAVAILABLE, node.NodeStageVolume,
            stage_request("bad", {"url": "kestrel://127.0.0.1:1/x"}, "SINGLE_NODE_WRITER"))
    block = csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume(),
                                 access_mode=capability().access_mode)
    refused("a block device", no.INVALID_ARGUMENT, controller.CreateVolume,
            csi.CreateVolumeRequest(name="block", volume_capabilities=[block]))
    odd = create("../a b/@%")
    check("any name makes one directory", "/" not in odd.volume_id, odd.volume_id)
    os.mkdir(f"{pod_whole}/csi/cut-short")
    write(f"{pod_whole}/csi/cut-short/x", b"x")
    again = create("cut-short", MIB)
    pod_again = mounted("cut-short", dict(again.volume_context))
    check("what a killed driver began is made anew", os.listdir(pod_again) == [])
    for volume in ["whole", "by-hand", "cut-short"]:
        unpublished(volume)
        unstaged(volume)
    check("mounts of which nothing is staged go", processes() == 1, processes())


def after() -> None:
    """With a driver that was started again."""
    pod = f"{WORK}/pods/one"
    check("the mount has outlasted the driver", read(f"{pod}/file") == b"second")
    check("it is written", write(f"{pod}/file", b"fourth") == 0)
    pod_again = mounted("one", {}, name="again")
    check("the new driver publishes from it", read(f"{pod_again}/file") == b"fourth")
    check("by the same process", processes() == 1, processes())
    listed = controller.ListSnapshots(csi.ListSnapshotsRequest())
    check("it knows the snapshot", [one.snapshot.snapshot_id for one in listed.entries]
          == ["one@monday"], listed)
    for volume, name in [("one", ""), ("one", "reader"), ("one", "again"), ("restored", ""),
                         ("clone", "")]:
        unpublished(volume, name)
    for volume in ["one", "restored", "clone"]:
        unstaged(volume)
    check("nothing is published", os.listdir(f"{WORK}/pods") == [], os.listdir(f"{WORK}/pods"))
    delete = csi.DeleteSnapshotRequest(snapshot_id="one@monday")
    for _ in range(2):
        controller.DeleteSnapshot(delete)
    for listed in controller.ListVolumes(csi.ListVolumesRequest()).entries:
        for _ in range(2):
            controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=listed.volume.volume_id))
    left = controller.ListVolumes(csi.ListVolumesRequest()).entries
    check("no volume is left", len(left) == 0, left)
    homes = os.listdir(f"{WORK}/state/mounts")
    check("the driver's own mount is left", len(homes) == 1, homes)
    home = f"{WORK}/state/mounts/{homes[0]}/csi"
    check("and in it no volume's directory", os.listdir(home) == [], os.listdir(home))


{"before": before, "after": after}[STEP]()
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
