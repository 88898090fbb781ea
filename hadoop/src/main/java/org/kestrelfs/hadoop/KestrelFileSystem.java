package org.kestrelfs.hadoop;

import com.sun.jna.Memory;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.util.Progressable;

/**
 * KestrelFS volumes as {@code kestrel://}, through the C library. Semantics are those of HDFS as far
 * as its contract says; what it leaves open is that of POSIX. Threads may share it.
 */
public class KestrelFileSystem extends FileSystem {

  /** The scheme of its URIs. */
  public static final String SCHEME = "kestrel";

  /** What Hadoop divides files by, bytes, unless fs.kestrel.block.size says otherwise. */
  private static final long BLOCK_BYTES = 128L << 20;

  /** Buffer of a stream, bytes, unless a program asks for more. */
  private static final int STREAM_BYTES = 1 << 20;

  /** {@code struct kestrel_dirent}. */
  private static final int DIRENT_BYTES = 408;
  private static final int DIRENT_ERROR = 16;
  private static final int DIRENT_ATTRIBUTES = 24;
  private static final int DIRENT_NAME = 24 + Attributes.BYTES;

  /** {@code struct kestrel_room}. */
  private static final int ROOM_BYTES = 64;

  private URI uri;
  private long volume;
  private Path workingDirectory;
  private long blockBytes;
  /** What the library takes from modes by itself. */
  private int processUmask;

  @Override
  public String getScheme() {
    return SCHEME;
  }

  @Override
  public URI getUri() {
    return uri;
  }

  @Override
  public void initialize(URI name, Configuration conf) throws IOException {
    super.initialize(name, conf);
    setConf(conf);
    volume = Volume.open(name, conf);
    uri = URI.create(SCHEME + "://" + name.getAuthority());
    workingDirectory = getHomeDirectory();
    blockBytes = conf.getLongBytes("fs.kestrel.block.size", BLOCK_BYTES);
    processUmask = processUmask();
  }

  private static int processUmask() throws IOException {
    for (String line : Files.readAllLines(Paths.get("/proc/self/status"),
        StandardCharsets.ISO_8859_1)) {
      if (line.startsWith("Umask:")) {
        return Integer.parseInt(line.substring(6).trim(), 8);
      }
    }
    return 0;
  }

  @Override
  public void close() throws IOException {
    long open;
    synchronized (this) {
      open = volume;
      volume = 0;
    }
    try {
      super.close();
    } finally {
      if (open > 0) {
        LibKestrel.check(LibKestrel.kestrel_volume_close(open), String.valueOf(uri));
      }
    }
  }

  /** Of a path, from the root of the volume. */
  private String pathOf(Path path) {
    Path qualified = makeQualified(path);
    return qualified.toUri().getPath();
  }

  private static byte[] bytes(String path) {
    return LibKestrel.text(path);
  }

  /** A path that is not there, or that leads through a file: for Hadoop that is the same. */
  private static boolean isMissing(long result) {
    return result == -LibKestrel.ENOENT || result == -LibKestrel.ENOTDIR;
  }

  private static IOException missing(String path) {
    return new FileNotFoundException(path + ": " + LibKestrel.error());
  }

  /** Attributes of a path; null if there is nothing. */
  private Attributes find(String path, int flags) throws IOException {
    Memory memory = new Memory(Attributes.BYTES);
    long found = LibKestrel.kestrel_stat(volume, bytes(path), flags, memory);
    if (isMissing(found)) {
      return null;
    }
    LibKestrel.check(found, path);
    return new Attributes(memory, 0);
  }

  /** What open and create ask for: 4096 in most configurations, which is less than one request. */
  private static int streamBytes(int asked) {
    return Math.max(asked, STREAM_BYTES);
  }

  @Override
  public FSDataInputStream open(Path file, int bufferSize) throws IOException {
    statistics.incrementReadOps(1);
    String path = pathOf(file);
    long handle = LibKestrel.kestrel_open(volume, bytes(path), LibKestrel.O_RDONLY, 0);
    if (isMissing(handle)) {
      throw missing(path);
    }
    if (handle == -LibKestrel.EISDIR) {
      throw new FileNotFoundException(path + ": it is a directory");
    }
    LibKestrel.check(handle, path);
    return new FSDataInputStream(
        new KestrelInputStream(handle, path, streamBytes(bufferSize), statistics));
  }

  /** The bits of a permission that the configuration leaves. */
  private int modeOf(FsPermission permission) {
    FsPermission given = permission == null ? FsPermission.getFileDefault() : permission;
    return given.applyUMask(FsPermission.getUMask(getConf())).toShort() & 01777;
  }

  /** Gives what was made the bits that the library has taken from it. */
  private void setMode(String path, int mode) throws IOException {
    if ((mode & processUmask) != 0) {
      LibKestrel.check(LibKestrel.kestrel_chmod(volume, bytes(path), mode, 0), path);
    }
  }

  private FSDataOutputStream create(String path, FsPermission permission, boolean overwrite,
      int bufferSize, Path parentToMake) throws IOException {
    statistics.incrementWriteOps(1);
    int mode = modeOf(permission);
    int flags = LibKestrel.O_WRONLY | LibKestrel.O_CREAT
        | (overwrite ? LibKestrel.O_TRUNC : LibKestrel.O_EXCL);
    long handle = LibKestrel.kestrel_open(volume, bytes(path), flags, mode);
    if (handle == -LibKestrel.ENOENT && parentToMake != null) {
      mkdirs(parentToMake, FsPermission.getDirDefault());
      handle = LibKestrel.kestrel_open(volume, bytes(path), flags, mode);
    }
    if (handle == -LibKestrel.EISDIR) {
      throw new FileAlreadyExistsException(path + ": it is a directory");
    }
    LibKestrel.check(handle, path);
    try {
      setMode(path, mode);
    } catch (IOException error) {
      LibKestrel.kestrel_close(handle);
      throw error;
    }
    return new FSDataOutputStream(
        new KestrelOutputStream(handle, path, streamBytes(bufferSize)), statistics);
  }

  @Override
  public FSDataOutputStream create(Path file, FsPermission permission, boolean overwrite,
      int bufferSize, short replication, long blockSize, Progressable progress)
      throws IOException {
    String path = pathOf(file);
    return create(path, permission, overwrite, bufferSize, makeQualified(file).getParent());
  }

  @Override
  public FSDataOutputStream createNonRecursive(Path file, FsPermission permission,
      EnumSet<CreateFlag> flags, int bufferSize, short replication, long blockSize,
      Progressable progress) throws IOException {
    if (flags.contains(CreateFlag.APPEND) && exists(file)) {
      return append(file, bufferSize, progress);
    }
    return create(pathOf(file), permission, flags.contains(CreateFlag.OVERWRITE), bufferSize, null);
  }

  @Override
  public FSDataOutputStream append(Path file, int bufferSize, Progressable progress)
      throws IOException {
    statistics.incrementWriteOps(1);
    String path = pathOf(file);
    int flags = LibKestrel.O_WRONLY | LibKestrel.O_APPEND;
    long handle = LibKestrel.kestrel_open(volume, bytes(path), flags, 0);
    if (isMissing(handle)) {
      throw missing(path);
    }
    if (handle == -LibKestrel.EISDIR) {
      throw new FileAlreadyExistsException(path + ": it is a directory");
    }
    LibKestrel.check(handle, path);
    Memory memory = new Memory(Attributes.BYTES);
    long known = LibKestrel.kestrel_fstat(handle, memory);
    if (known < 0) {
      LibKestrel.kestrel_close(handle);
      throw LibKestrel.failure(known, path);
    }
    return new FSDataOutputStream(new KestrelOutputStream(handle, path, streamBytes(bufferSize)),
        statistics, new Attributes(memory, 0).size);
  }

  private static boolean isBelow(String path, String dir) {
    return path.startsWith(dir.endsWith("/") ? dir : dir + "/");
  }

  /**
   * As HDFS: into a directory that is there; false if there is something of the name, nothing to
   * rename, or no directory to rename into. At once for all who look.
   */
  @Override
  public boolean rename(Path source, Path target) throws IOException {
    statistics.incrementWriteOps(1);
    String from = pathOf(source);
    String to = pathOf(target);
    Attributes known = find(from, 1);
    if (known == null || from.equals("/")) {
      return false;
    }
    if (from.equals(to)) {
      return !known.isDirectory();
    }
    if (isBelow(to, from)) {
      return false;
    }
    Attributes there = find(to, 0);
    if (there != null && there.isDirectory()) {
      to = (to.equals("/") ? "" : to) + "/" + source.getName();
      if (from.equals(to)) {
        return !known.isDirectory();
      }
    } else if (there != null) {
      return false;
    }
    long renamed =
        LibKestrel.kestrel_rename(volume, bytes(from), bytes(to), LibKestrel.NOREPLACE);
    if (isMissing(renamed) || renamed == -LibKestrel.EEXIST || renamed == -LibKestrel.ENOTEMPTY
        || renamed == -LibKestrel.EINVAL) {
      return false;
    }
    LibKestrel.check(renamed, from);
    return true;
  }

  /** Without the steps between that {@code FileSystem} has. */
  @Override
  @Deprecated
  protected void rename(Path source, Path target, Options.Rename... options) throws IOException {
    replace(source, target, options);
  }

  /**
   * Renames to this very name, at once for all who look.
   *
   * @param source what is renamed
   * @param target its new path
   * @param options with OVERWRITE a file or an empty directory that is there is replaced
   * @throws IOException if it cannot be
   */
  void replace(Path source, Path target, Options.Rename... options) throws IOException {
    statistics.incrementWriteOps(1);
    boolean overwrite = false;
    for (Options.Rename option : options) {
      overwrite |= option == Options.Rename.OVERWRITE;
    }
    String from = pathOf(source);
    String to = pathOf(target);
    if (from.equals(to)) {
      throw new FileAlreadyExistsException(from + ": it is renamed to itself");
    }
    Path above = makeQualified(target).getParent();
    Attributes parent = above == null ? null : find(above.toUri().getPath(), 0);
    if (parent != null && !parent.isDirectory()) {
      throw new ParentNotDirectoryException(above + ": it is no directory");
    }
    Attributes known = find(from, 1);
    if (known == null || parent == null && above != null) {
      throw new FileNotFoundException((known == null ? source : above) + ": there is nothing");
    }
    long renamed = LibKestrel.kestrel_rename(volume, bytes(from), bytes(to),
        overwrite ? 0 : LibKestrel.NOREPLACE);
    LibKestrel.check(renamed, from + " -> " + to);
  }

  @Override
  public boolean delete(Path file, boolean recursive) throws IOException {
    statistics.incrementWriteOps(1);
    String path = pathOf(file);
    Attributes known = find(path, 1);
    if (known == null) {
      return false;
    }
    if (!known.isDirectory()) {
      return !isMissing(removed(LibKestrel.kestrel_unlink(volume, bytes(path)), path));
    }
    if (path.equals("/")) {
      if (!recursive && !names(path, 0).isEmpty()) {
        throw new PathIsNotEmptyDirectoryException(path);
      }
      // The root of a volume stays, and all that is in it.
      return false;
    }
    if (recursive) {
      deleteBelow(path);
    }
    return !isMissing(removed(LibKestrel.kestrel_rmdir(volume, bytes(path)), path));
  }

  /** What another process has removed meanwhile is removed. */
  private static long removed(long result, String path) throws IOException {
    return isMissing(result) ? result : LibKestrel.check(result, path);
  }

  private void deleteBelow(String top) throws IOException {
    for (Entry entry : names(top, 0)) {
      String path = top + "/" + entry.name;
      if (entry.isDirectory) {
        deleteBelow(path);
        removed(LibKestrel.kestrel_rmdir(volume, bytes(path)), path);
      } else {
        removed(LibKestrel.kestrel_unlink(volume, bytes(path)), path);
      }
    }
  }

  /** A name in a directory. */
  private static final class Entry {
    final String name;
    final boolean isDirectory;
    /** Null if they were not asked for, or could not be had. */
    final Attributes attributes;

    Entry(Memory memory, boolean withAttributes) {
      name = memory.getString(DIRENT_NAME, "UTF-8");
      isDirectory = memory.getInt(8) == 4;
      attributes = withAttributes && memory.getInt(DIRENT_ERROR) == 0
          ? new Attributes(memory, DIRENT_ATTRIBUTES) : null;
    }
  }

  /** A directory that is being listed. It is closed at its end. */
  private final class Names implements RemoteIterator<Entry> {
    private final String path;
    private final boolean withAttributes;
    private final Memory memory = new Memory(DIRENT_BYTES);
    private long dir;
    private Entry next;

    Names(String path, int flags) throws IOException {
      this.path = path;
      withAttributes = flags == LibKestrel.DIR_ATTRIBUTES;
      dir = LibKestrel.kestrel_opendir(volume, bytes(path), flags);
      if (isMissing(dir)) {
        throw missing(path);
      }
      LibKestrel.check(dir, path);
      step();
    }

    private void step() throws IOException {
      long got = dir == 0 ? 0 : LibKestrel.kestrel_readdir(dir, memory);
      next = got > 0 ? new Entry(memory, withAttributes) : null;
      if (got <= 0 && dir != 0) {
        IOException failure = got < 0 ? LibKestrel.failure(got, path) : null;
        LibKestrel.kestrel_closedir(dir);
        dir = 0;
        if (failure != null) {
          throw failure;
        }
      }
    }

    @Override
    public boolean hasNext() {
      return next != null;
    }

    @Override
    public Entry next() throws IOException {
      if (next == null) {
        throw new NoSuchElementException(path + ": no further names");
      }
      Entry entry = next;
      step();
      return entry;
    }
  }

  private List<Entry> names(String path, int flags) throws IOException {
    List<Entry> all = new ArrayList<>();
    Names names = new Names(path, flags);
    while (names.hasNext()) {
      all.add(names.next());
    }
    return all;
  }

  /** The status of a name in a directory; null if it is gone, or a link that leads nowhere. */
  private FileStatus statusOf(Path dir, Entry entry) throws IOException {
    Path path = new Path(dir, new Path(null, null, entry.name));
    Attributes known = entry.attributes;
    if (known == null || known.isLink()) {
      known = find(path.toUri().getPath(), 0);
    }
    return known == null ? null : known.status(path, blockBytes);
  }

  @Override
  public FileStatus[] listStatus(Path file) throws IOException {
    List<FileStatus> all = new ArrayList<>();
    RemoteIterator<FileStatus> statuses = listStatusIterator(file);
    while (statuses.hasNext()) {
      all.add(statuses.next());
    }
    return all.toArray(new FileStatus[0]);
  }

  /** Names come page by page, each page with all attributes. */
  @Override
  public RemoteIterator<FileStatus> listStatusIterator(Path file) throws IOException {
    statistics.incrementReadOps(1);
    Path dir = makeQualified(file);
    FileStatus own = getFileStatus(dir);
    if (!own.isDirectory()) {
      return new Statuses(null, dir, own);
    }
    return new Statuses(new Names(pathOf(dir), LibKestrel.DIR_ATTRIBUTES), dir, null);
  }

  /** The statuses of a directory's names, or of one file. */
  private final class Statuses implements RemoteIterator<FileStatus> {
    private final Names names;
    private final Path dir;
    private FileStatus next;

    Statuses(Names names, Path dir, FileStatus first) throws IOException {
      this.names = names;
      this.dir = dir;
      next = first;
      if (names != null) {
        step();
      }
    }

    private void step() throws IOException {
      next = null;
      while (names != null && next == null && names.hasNext()) {
        next = statusOf(dir, names.next());
      }
    }

    @Override
    public boolean hasNext() {
      return next != null;
    }

    @Override
    public FileStatus next() throws IOException {
      if (next == null) {
        throw new NoSuchElementException(dir + ": no further names");
      }
      FileStatus status = next;
      step();
      return status;
    }
  }

  @Override
  public FileStatus getFileStatus(Path file) throws IOException {
    statistics.incrementReadOps(1);
    String path = pathOf(file);
    Attributes known = find(path, 0);
    if (known == null) {
      throw missing(path);
    }
    return known.status(makeQualified(file), blockBytes);
  }

  @Override
  public boolean mkdirs(Path dir, FsPermission permission) throws IOException {
    statistics.incrementWriteOps(1);
    FsPermission given = permission == null ? FsPermission.getDirDefault() : permission;
    makeDirs(makeQualified(dir), modeOf(given));
    return true;
  }

  private void makeDirs(Path dir, int mode) throws IOException {
    String path = dir.toUri().getPath();
    long made = LibKestrel.kestrel_mkdir(volume, bytes(path), mode);
    if (made == -LibKestrel.ENOENT && dir.getParent() != null) {
      // The process that makes a tree must be able to make what is in it.
      makeDirs(dir.getParent(), mode | 0300);
      made = LibKestrel.kestrel_mkdir(volume, bytes(path), mode);
    }
    if (made == -LibKestrel.EEXIST) {
      Attributes known = find(path, 0);
      if (known != null && known.isDirectory()) {
        return;
      }
      throw new FileAlreadyExistsException(path + ": it is a file");
    }
    LibKestrel.check(made, path);
    setMode(path, mode);
  }

  @Override
  public boolean truncate(Path file, long size) throws IOException {
    statistics.incrementWriteOps(1);
    String path = pathOf(file);
    Attributes known = find(path, 0);
    if (known == null) {
      throw missing(path);
    }
    if (known.isDirectory()) {
      throw new FileNotFoundException(path + ": it is a directory");
    }
    if (size < 0 || size > known.size) {
      throw new IllegalArgumentException("truncate to " + size + " bytes, of " + known.size);
    }
    LibKestrel.check(LibKestrel.kestrel_truncate(volume, bytes(path), size), path);
    return true;
  }

  @Override
  public void setPermission(Path file, FsPermission permission) throws IOException {
    String path = pathOf(file);
    int mode = permission.toShort() & 01777;
    LibKestrel.check(LibKestrel.kestrel_chmod(volume, bytes(path), mode, 0), path);
  }

  @Override
  public void setOwner(Path file, String user, String group) throws IOException {
    String path = pathOf(file);
    int uid = Users.uid(user);
    int gid = Users.gid(group);
    LibKestrel.check(LibKestrel.kestrel_chown(volume, bytes(path), uid, gid, 0), path);
  }

  private static long nanos(long milliseconds) {
    return milliseconds < 0 ? LibKestrel.TIME_OMIT : Math.multiplyExact(milliseconds, 1_000_000L);
  }

  @Override
  public void setTimes(Path file, long mtime, long atime) throws IOException {
    String path = pathOf(file);
    LibKestrel.check(
        LibKestrel.kestrel_utimens(volume, bytes(path), nanos(atime), nanos(mtime), 0), path);
  }

  @Override
  public void access(Path file, FsAction action) throws IOException {
    String path = pathOf(file);
    long result = LibKestrel.kestrel_access(volume, bytes(path), action.ordinal());
    if (isMissing(result)) {
      throw missing(path);
    }
    if (result == -LibKestrel.EROFS) {
      throw new AccessControlException(path + ": " + LibKestrel.error());
    }
    LibKestrel.check(result, path);
  }

  @Override
  public void setXAttr(Path file, String name, byte[] value, EnumSet<XAttrSetFlag> flags)
      throws IOException {
    String path = pathOf(file);
    boolean create = flags.contains(XAttrSetFlag.CREATE);
    boolean replace = flags.contains(XAttrSetFlag.REPLACE);
    int how = create == replace ? 0
        : create ? LibKestrel.XATTR_CREATE : LibKestrel.XATTR_REPLACE;
    byte[] given = value == null ? new byte[0] : value;
    LibKestrel.check(LibKestrel.kestrel_setxattr(volume, bytes(path), bytes(name), given,
        given.length, how), path);
  }

  @Override
  public byte[] getXAttr(Path file, String name) throws IOException {
    String path = pathOf(file);
    while (true) {
      long size = LibKestrel.check(LibKestrel.kestrel_getxattr(volume, bytes(path), bytes(name),
          new byte[1], 0, 0), path);
      byte[] value = new byte[(int) size];
      if (size == 0) {
        return value;
      }
      long got = LibKestrel.kestrel_getxattr(volume, bytes(path), bytes(name), value, size, 0);
      if (got == -LibKestrel.ERANGE) {
        // It has become larger.
        continue;
      }
      return java.util.Arrays.copyOf(value, (int) LibKestrel.check(got, path));
    }
  }

  @Override
  public List<String> listXAttrs(Path file) throws IOException {
    String path = pathOf(file);
    List<String> names = new ArrayList<>();
    while (true) {
      long size = LibKestrel.check(
          LibKestrel.kestrel_listxattr(volume, bytes(path), new byte[1], 0, 0), path);
      if (size == 0) {
        return names;
      }
      byte[] all = new byte[(int) size];
      long got = LibKestrel.kestrel_listxattr(volume, bytes(path), all, size, 0);
      if (got == -LibKestrel.ERANGE) {
        continue;
      }
      int len = (int) LibKestrel.check(got, path);
      for (String name : new String(all, 0, len, StandardCharsets.UTF_8).split("\0")) {
        if (!name.isEmpty()) {
          names.add(name);
        }
      }
      return names;
    }
  }

  @Override
  public Map<String, byte[]> getXAttrs(Path file) throws IOException {
    return getXAttrs(file, listXAttrs(file));
  }

  @Override
  public Map<String, byte[]> getXAttrs(Path file, List<String> names) throws IOException {
    Map<String, byte[]> all = new LinkedHashMap<>();
    for (String name : names) {
      all.put(name, getXAttr(file, name));
    }
    return all;
  }

  @Override
  public void removeXAttr(Path file, String name) throws IOException {
    String path = pathOf(file);
    LibKestrel.check(LibKestrel.kestrel_removexattr(volume, bytes(path), bytes(name), 0), path);
  }

  @Override
  public FsStatus getStatus(Path file) throws IOException {
    Memory room = new Memory(ROOM_BYTES);
    LibKestrel.check(LibKestrel.kestrel_volume_room(volume, room), String.valueOf(uri));
    long block = room.getLong(0);
    long blocks = room.getLong(8);
    long free = room.getLong(16);
    return new FsStatus(block * blocks, block * (blocks - free), block * free);
  }

  @Override
  public void setWorkingDirectory(Path dir) {
    workingDirectory = makeQualified(dir);
  }

  @Override
  public Path getWorkingDirectory() {
    return workingDirectory;
  }

  @Override
  public Path getHomeDirectory() {
    return makeQualified(new Path("/user/" + System.getProperty("user.name")));
  }

  @Override
  protected Path getInitialWorkingDirectory() {
    return null;
  }

  @Override
  @Deprecated
  public long getDefaultBlockSize() {
    return blockBytes;
  }

  @Override
  @Deprecated
  public short getDefaultReplication() {
    return 1;
  }

  @Override
  public int getDefaultPort() {
    return 0;
  }

  /** There are no tokens that Hadoop would fetch: those of KestrelFS are configured. */
  @Override
  public String getCanonicalServiceName() {
    return null;
  }

  @Override
  public boolean hasPathCapability(Path path, String capability) throws IOException {
    switch (capability.toLowerCase(java.util.Locale.ROOT)) {
      case CommonPathCapabilities.FS_APPEND:
      case CommonPathCapabilities.FS_PERMISSIONS:
      case CommonPathCapabilities.FS_TRUNCATE:
      case CommonPathCapabilities.FS_XATTRS:
        return true;
      default:
        return super.hasPathCapability(path, capability);
    }
  }
}
