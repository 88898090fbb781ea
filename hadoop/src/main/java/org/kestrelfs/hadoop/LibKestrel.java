package org.kestrelfs.hadoop;

import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Pointer;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.security.AccessControlException;

/**
 * The calls of {@code kestrel.h} that the file system makes. Handles, results and memory are as
 * that header says.
 */
final class LibKestrel {

  /** Where the library is, as of the first file system of this process; null: it was searched. */
  private static String loaded;

  private static boolean isLoaded;

  static final int ENOENT = 2;
  static final int EACCES = 13;
  static final int EEXIST = 17;
  static final int ENOTDIR = 20;
  static final int EISDIR = 21;
  static final int EINVAL = 22;
  static final int EROFS = 30;
  static final int ERANGE = 34;
  static final int ENOTEMPTY = 39;
  static final int EPERM = 1;

  static final int O_RDONLY = 0;
  static final int O_WRONLY = 1;
  static final int O_CREAT = 0100;
  static final int O_EXCL = 0200;
  static final int O_TRUNC = 01000;
  static final int O_APPEND = 02000;

  static final int READ_ONLY = 1;
  static final int EXIST_OK = 1;
  static final int NOREPLACE = 1;
  static final int DIR_ATTRIBUTES = 1;
  static final int XATTR_CREATE = 2;
  static final int XATTR_REPLACE = 4;
  static final int KEEP_ID = -1;
  static final long TIME_OMIT = Long.MIN_VALUE + 1;

  private LibKestrel() {
  }

  static native Pointer kestrel_error();

  static native long kestrel_volume_open(byte[] url, Pointer options);

  static native int kestrel_volume_close(long volume);

  static native int kestrel_volume_is_read_only(long volume);

  static native int kestrel_volume_room(long volume, Pointer room);

  static native int kestrel_stat(long volume, byte[] path, int flags, Pointer attributes);

  static native int kestrel_access(long volume, byte[] path, int mask);

  static native int kestrel_chmod(long volume, byte[] path, int mode, int flags);

  static native int kestrel_chown(long volume, byte[] path, int uid, int gid, int flags);

  static native int kestrel_utimens(long volume, byte[] path, long atime, long mtime, int flags);

  static native int kestrel_truncate(long volume, byte[] path, long size);

  static native long kestrel_getxattr(long volume, byte[] path, byte[] name, byte[] buffer, long len,
      int flags);

  static native long kestrel_listxattr(long volume, byte[] path, byte[] buffer, long len, int flags);

  static native int kestrel_setxattr(long volume, byte[] path, byte[] name, byte[] value, long len,
      int flags);

  static native int kestrel_removexattr(long volume, byte[] path, byte[] name, int flags);

  static native int kestrel_mkdirs(long volume, byte[] path, int mode, int flags);

  static native int kestrel_mkdir(long volume, byte[] path, int mode);

  static native int kestrel_unlink(long volume, byte[] path);

  static native int kestrel_rmdir(long volume, byte[] path);

  static native int kestrel_rename(long volume, byte[] from, byte[] to, int flags);

  static native long kestrel_open(long volume, byte[] path, int flags, int mode);

  static native int kestrel_close(long file);

  static native long kestrel_pread(long file, ByteBuffer buffer, long len, long offset);

  static native long kestrel_write(long file, ByteBuffer buffer, long len);

  static native long kestrel_lseek(long file, long offset, int whence);

  static native int kestrel_flush(long file);

  static native int kestrel_fsync(long file);

  static native int kestrel_fstat(long file, Pointer attributes);

  static native long kestrel_opendir(long volume, byte[] path, int flags);

  static native int kestrel_readdir(long dir, Pointer entry);

  static native int kestrel_closedir(long dir);

  /**
   * Loads the library, once in a process.
   *
   * @param path the file, or null: it is searched where the system and JNA search
   * @throws IOException if it is not there: the text says what to install
   */
  static synchronized void load(String path) throws IOException {
    if (isLoaded) {
      if (path != null && !path.equals(loaded)) {
        throw new IOException("fs.kestrel.library is " + path + ", but this process has loaded "
            + (loaded == null ? "libkestrel.so.0" : loaded) + " before; a process loads one");
      }
      return;
    }
    try {
      // By the name of its ABI: what is there of another one does not fit.
      NativeLibrary library = NativeLibrary.getInstance(path == null ? "libkestrel.so.0" : path,
          Collections.<String, Object>emptyMap());
      Native.register(LibKestrel.class, library);
    } catch (UnsatisfiedLinkError error) {
      throw new IOException("kestrel-hadoop.jar needs the C library of KestrelFS, "
          + (path == null ? "libkestrel.so.0, which is not installed on this machine" : path
              + ", which cannot be loaded")
          + ": install it with `make c-library && make install-c && ldconfig`, or set "
          + "fs.kestrel.library to the file (" + error.getMessage().replace('\n', ' ') + ")",
          error);
    }
    loaded = path;
    isLoaded = true;
  }

  /** A path or text as the library takes it: UTF-8 with a NUL. */
  static byte[] text(String text) {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    return java.util.Arrays.copyOf(bytes, bytes.length + 1);
  }

  /** What the library says of this thread's last error. */
  static String error() {
    return kestrel_error().getString(0, "UTF-8");
  }

  /**
   * The exception that Hadoop has for an error.
   *
   * @param result what the call has returned, below zero
   * @param path what it was about
   */
  static IOException failure(long result, String path) {
    int errno = (int) -result;
    String why = path + ": " + error();
    switch (errno) {
      case ENOENT:
        return new FileNotFoundException(why);
      case EEXIST:
        return new FileAlreadyExistsException(why);
      case ENOTDIR:
        return new ParentNotDirectoryException(why);
      case ENOTEMPTY:
        return (IOException) new PathIsNotEmptyDirectoryException(path).initCause(
            new IOException(why));
      case EACCES:
      case EPERM:
        return new AccessControlException(why);
      default:
        return new IOException(why);
    }
  }

  /** The result of a call, unless it has failed. */
  static long check(long result, String path) throws IOException {
    if (result < 0) {
      throw failure(result, path);
    }
    return result;
  }
}
