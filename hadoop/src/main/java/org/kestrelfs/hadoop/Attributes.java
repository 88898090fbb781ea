package org.kestrelfs.hadoop;

import com.sun.jna.Pointer;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/** {@code struct kestrel_attributes}, read from memory. */
final class Attributes {

  /** Bytes of the struct. */
  static final int BYTES = 128;

  private static final int TYPE_MASK = 0170000;
  private static final int TYPE_DIR = 0040000;
  private static final int TYPE_LINK = 0120000;

  final long size;
  final int mode;
  final int uid;
  final int gid;
  final long atimeMs;
  final long mtimeMs;

  /** Those that lie at an offset. */
  Attributes(Pointer memory, long at) {
    size = memory.getLong(at + 8);
    mode = memory.getInt(at + 16);
    uid = memory.getInt(at + 24);
    gid = memory.getInt(at + 28);
    atimeMs = Math.floorDiv(memory.getLong(at + 40), 1_000_000L);
    mtimeMs = Math.floorDiv(memory.getLong(at + 48), 1_000_000L);
  }

  boolean isDirectory() {
    return (mode & TYPE_MASK) == TYPE_DIR;
  }

  boolean isLink() {
    return (mode & TYPE_MASK) == TYPE_LINK;
  }

  /** As Hadoop has them. */
  FileStatus status(Path path, long blockBytes) {
    boolean isDirectory = isDirectory();
    return new FileStatus(isDirectory ? 0 : size, isDirectory, isDirectory ? 0 : 1,
        isDirectory ? 0 : blockBytes, mtimeMs, atimeMs, new FsPermission((short) (mode & 01777)),
        Users.user(uid), Users.group(gid), path);
  }
}
