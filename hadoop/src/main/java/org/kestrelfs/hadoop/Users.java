package org.kestrelfs.hadoop;

import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Pointer;
import java.io.IOException;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** Names of users and groups for the numbers that files have, as this machine knows them. */
final class Users {

  /** Bytes before the number in {@code struct passwd} and {@code struct group}: two pointers. */
  private static final int ID_OFFSET = 16;

  private static final Map<Integer, String> USERS = new ConcurrentHashMap<>();
  private static final Map<Integer, String> GROUPS = new ConcurrentHashMap<>();

  static {
    Native.register(Users.class,
        NativeLibrary.getInstance("libc.so.6", Collections.<String, Object>emptyMap()));
  }

  private Users() {
  }

  // Their results are the C library's, until the next call: one thread at a time.
  private static native Pointer getpwuid(int uid);

  private static native Pointer getpwnam(byte[] name);

  private static native Pointer getgrgid(int gid);

  private static native Pointer getgrnam(byte[] name);

  private static synchronized String nameOf(int id, boolean isGroup) {
    Pointer found = isGroup ? getgrgid(id) : getpwuid(id);
    return found == null ? Integer.toUnsignedString(id) : found.getPointer(0).getString(0, "UTF-8");
  }

  private static synchronized int idOf(String name, boolean isGroup) throws IOException {
    byte[] text = LibKestrel.text(name);
    Pointer found = isGroup ? getgrnam(text) : getpwnam(text);
    if (found != null) {
      return found.getInt(ID_OFFSET);
    }
    try {
      return Integer.parseUnsignedInt(name);
    } catch (NumberFormatException error) {
      throw new IOException((isGroup ? "group " : "user ") + name
          + ": this machine knows none of this name; give the number", error);
    }
  }

  /** The name of a user, or the number. */
  static String user(int uid) {
    return USERS.computeIfAbsent(uid, id -> nameOf(id, false));
  }

  /** The name of a group, or the number. */
  static String group(int gid) {
    return GROUPS.computeIfAbsent(gid, id -> nameOf(id, true));
  }

  /** The number of a user, which is named or numbered; of null that which changes nothing. */
  static int uid(String name) throws IOException {
    return name == null || name.isEmpty() ? LibKestrel.KEEP_ID : idOf(name, false);
  }

  /** The number of a group, as for {@link #uid}. */
  static int gid(String name) throws IOException {
    return name == null || name.isEmpty() ? LibKestrel.KEEP_ID : idOf(name, true);
  }
}
