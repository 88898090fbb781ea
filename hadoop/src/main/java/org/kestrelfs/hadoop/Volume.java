package org.kestrelfs.hadoop;

import com.sun.jna.Memory;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;

/** The volume that a URI and the configuration name, opened by the library. */
final class Volume {

  private static final String PREFIX = "fs.kestrel.";

  private Volume() {
  }

  /** A setting of one authority, else of all. */
  private static String get(Configuration conf, String authority, String key) {
    String own = conf.getTrimmed(PREFIX + authority + "." + key);
    return own != null ? own : conf.getTrimmed(PREFIX + key);
  }

  /**
   * The URL of the volume: what {@code fs.kestrel.AUTHORITY.url} says, else that of
   * {@code kestrel://VOLUME@HOST[:PORT]/}.
   */
  static String url(URI uri, Configuration conf) throws IOException {
    String authority = uri.getAuthority();
    if (authority == null || authority.isEmpty()) {
      throw new IOException(uri + ": which volume? Write kestrel://VOLUME@HOST[:PORT]/PATH, or "
          + "kestrel://NAME/PATH and set fs.kestrel.NAME.url to the URL that `kestrel mount` takes");
    }
    String url = conf.getTrimmed(PREFIX + authority + ".url");
    if (url != null && !url.isEmpty()) {
      return url;
    }
    int at = authority.indexOf('@');
    if (at > 0 && at < authority.length() - 1) {
      return "kestrel://" + authority.substring(at + 1) + "/" + authority.substring(0, at);
    }
    throw new IOException("kestrel://" + authority + "/: fs.kestrel." + authority
        + ".url is not set; set it to the URL that `kestrel mount` takes, or write "
        + "kestrel://VOLUME@HOST[:PORT]/PATH");
  }

  /** The token that servers are shown; null: that of the process. */
  private static String token(Configuration conf, String authority) throws IOException {
    for (String key : new String[] {PREFIX + authority + ".token", PREFIX + "token"}) {
      // From a credential provider, if there is one that has it.
      char[] token = conf.getPassword(key);
      if (token != null && token.length > 0) {
        return new String(token).trim();
      }
    }
    String file = get(conf, authority, "token.file");
    if (file == null || file.isEmpty()) {
      return null;
    }
    return new String(Files.readAllBytes(Paths.get(file)), StandardCharsets.UTF_8).trim();
  }

  private static Memory text(String text) {
    byte[] bytes = LibKestrel.text(text);
    Memory memory = new Memory(bytes.length);
    memory.write(0, bytes, 0, bytes.length);
    return memory;
  }

  /** Opens it. */
  static long open(URI uri, Configuration conf) throws IOException {
    LibKestrel.load(conf.getTrimmed(PREFIX + "library"));
    String authority = uri.getAuthority();
    String url = url(uri, conf);
    String token = token(conf, authority);
    boolean isReadOnly = Boolean.parseBoolean(get(conf, authority, "read.only"));
    long deadline = conf.getTimeDuration(PREFIX + "deadline", 0, TimeUnit.MILLISECONDS);
    // struct kestrel_options: size, flags, token, who, deadline.
    int bytes = 8 + 2 * Native.POINTER_SIZE + 8;
    Memory who = text("Hadoop, " + System.getProperty("user.name"));
    Memory shown = token == null ? null : text(token);
    Memory options = new Memory(bytes);
    options.setInt(0, bytes);
    options.setInt(4, isReadOnly ? LibKestrel.READ_ONLY : 0);
    options.setPointer(8, shown == null ? Pointer.NULL : shown);
    options.setPointer(8 + Native.POINTER_SIZE, who);
    options.setLong(8 + 2 * Native.POINTER_SIZE, deadline);
    try {
      return LibKestrel.check(LibKestrel.kestrel_volume_open(LibKestrel.text(url), options),
          uri.toString());
    } finally {
      if (shown != null) {
        shown.clear();
      }
      // The memory was used until here.
      who.clear();
    }
  }
}
