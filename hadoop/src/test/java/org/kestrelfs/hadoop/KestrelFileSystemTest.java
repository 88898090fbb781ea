package org.kestrelfs.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** What Hadoop's contract tests leave out. */
public class KestrelFileSystemTest {

  private static final Path TOP = new Path("/own");

  private Configuration conf;
  private FileSystem fs;

  /** Opens the volume, with a directory of the test's own. */
  @Before
  public void open() throws IOException {
    conf = TestedVolume.configure(new Configuration());
    fs = FileSystem.newInstance(URI.create(TestedVolume.URI), conf);
    fs.delete(TOP, true);
    fs.mkdirs(TOP);
  }

  /** Closes it. */
  @After
  public void close() throws IOException {
    fs.close();
  }

  private static Path at(String name) {
    return new Path(TOP, name);
  }

  private void put(Path path, byte[] bytes) throws IOException {
    try (FSDataOutputStream out = fs.create(path)) {
      out.write(bytes);
    }
  }

  private byte[] get(Path path) throws IOException {
    byte[] bytes = new byte[(int) fs.getFileStatus(path).getLen()];
    try (FSDataInputStream in = fs.open(path)) {
      in.readFully(0, bytes);
    }
    return bytes;
  }

  private static byte[] random(int len) {
    byte[] bytes = new byte[len];
    new Random(len).nextBytes(bytes);
    return bytes;
  }

  /** A file that is larger than buffers, read by threads that share the stream, and in all ways. */
  @Test
  public void largeFileByManyReaders() throws Exception {
    byte[] bytes = random(11_000_003);
    put(at("large"), bytes);
    ExecutorService threads = Executors.newFixedThreadPool(4);
    try (FSDataInputStream in = fs.open(at("large"))) {
      List<Future<Boolean>> parts = new ArrayList<>();
      for (int start = 0; start < bytes.length; start += 700_001) {
        int from = start;
        int to = Math.min(bytes.length, start + 700_001);
        parts.add(threads.submit(() -> {
          byte[] part = new byte[to - from];
          in.readFully(from, part);
          return Arrays.equals(part, Arrays.copyOfRange(bytes, from, to));
        }));
      }
      for (Future<Boolean> part : parts) {
        assertTrue(part.get());
      }
      for (ByteBuffer room : new ByteBuffer[] {
          ByteBuffer.allocate(5_000_000), ByteBuffer.allocateDirect(5_000_000)}) {
        in.readFully(3, room);
        room.flip();
        assertEquals(ByteBuffer.wrap(bytes, 3, 5_000_000), room);
        room.clear();
        in.seek(100);
        while (room.hasRemaining()) {
          assertTrue(in.read(room) > 0);
        }
        assertEquals(100 + 5_000_000, in.getPos());
        room.flip();
        assertEquals(ByteBuffer.wrap(bytes, 100, 5_000_000), room);
      }
      in.unbuffer();
      assertEquals(bytes[5_000_100] & 0xff, in.read());
      assertEquals(bytes.length - 5_000_101, in.available());
    } finally {
      threads.shutdown();
    }
    assertArrayEquals(bytes, get(at("large")));
  }

  /** What hflush has committed is seen by another client, and so is what close has. */
  @Test
  public void writtenBytesSeenByOthers() throws IOException {
    FSDataOutputStream out = fs.create(at("log"));
    out.write("one".getBytes(StandardCharsets.UTF_8));
    out.hflush();
    try (FileSystem other = FileSystem.newInstance(URI.create(TestedVolume.URI), conf)) {
      assertEquals(3, other.getFileStatus(at("log")).getLen());
      out.write("two".getBytes(StandardCharsets.UTF_8));
      out.hsync();
      assertEquals(6, other.getFileStatus(at("log")).getLen());
      out.close();
      out.close();
      assertThrows(ClosedChannelException.class, () -> out.write(1));
      try (FSDataOutputStream more = other.append(at("log"))) {
        assertEquals(6, more.getPos());
        more.write('!');
      }
      assertTrue(other.truncate(at("log"), 4));
    }
    assertArrayEquals("onet".getBytes(StandardCharsets.UTF_8), get(at("log")));
  }

  /** A rename that replaces does so at once: a thread that looks meanwhile sees one or the other. */
  @Test
  public void replacementThatNobodySees() throws Exception {
    byte[] first = random(1000);
    byte[] second = random(2000);
    put(at("now"), first);
    FileContext context = FileContext.getFileContext(URI.create(TestedVolume.URI), conf);
    ExecutorService thread = Executors.newSingleThreadExecutor();
    Future<Boolean> whole = thread.submit(() -> {
      for (int look = 0; look < 200; look++) {
        long len = fs.getFileStatus(at("now")).getLen();
        if (len != 1000 && len != 2000) {
          return false;
        }
      }
      return true;
    });
    for (int turn = 0; turn < 20; turn++) {
      put(at("new"), turn % 2 == 0 ? second : first);
      context.rename(at("new"), at("now"), Options.Rename.OVERWRITE);
    }
    assertTrue(whole.get());
    thread.shutdown();
    put(at("new"), first);
    assertThrows(FileAlreadyExistsException.class, () -> context.rename(at("new"), at("now")));
    fs.mkdirs(at("dir/full"));
    fs.mkdirs(at("other"));
    assertThrows(IOException.class,
        () -> context.rename(at("other"), at("dir"), Options.Rename.OVERWRITE));
    assertThrows(FileNotFoundException.class, () -> context.rename(at("none"), at("x")));
    assertThrows(ParentNotDirectoryException.class,
        () -> context.rename(at("new"), at("now/below")));
    assertTrue(fs.exists(at("new")) && fs.exists(at("dir/full")));
  }

  /** Extended attributes, owners by name and number, times, permissions that a umask would cut. */
  @Test
  public void attributes() throws IOException {
    put(at("file"), new byte[5]);
    fs.setXAttr(at("file"), "user.a", new byte[] {1, 0, 2});
    fs.setXAttr(at("file"), "user.empty", null, EnumSet.of(XAttrSetFlag.CREATE));
    assertThrows(FileAlreadyExistsException.class, () -> fs.setXAttr(at("file"), "user.a",
        new byte[1], EnumSet.of(XAttrSetFlag.CREATE)));
    assertArrayEquals(new byte[] {1, 0, 2}, fs.getXAttr(at("file"), "user.a"));
    assertEquals(Arrays.asList("user.a", "user.empty"), fs.listXAttrs(at("file")));
    assertEquals(0, fs.getXAttrs(at("file")).get("user.empty").length);
    fs.removeXAttr(at("file"), "user.a");
    assertEquals(Collections.singletonList("user.empty"), fs.listXAttrs(at("file")));

    fs.setOwner(at("file"), "root", null);
    assertEquals("root", fs.getFileStatus(at("file")).getOwner());
    IOException unknown =
        assertThrows(IOException.class, () -> fs.setOwner(at("file"), "nobody knows", null));
    assertTrue(unknown.getMessage(), unknown.getMessage().contains("give the number"));
    fs.setTimes(at("file"), 1_500_000_000_123L, -1);
    assertEquals(1_500_000_000_123L, fs.getFileStatus(at("file")).getModificationTime());

    Configuration open = new Configuration(conf);
    open.set("fs.permissions.umask-mode", "000");
    try (FileSystem all = FileSystem.newInstance(URI.create(TestedVolume.URI), open)) {
      all.create(at("open"), new FsPermission((short) 0666), true, 4096, (short) 1, 1L << 20, null)
          .close();
      assertEquals(0666, all.getFileStatus(at("open")).getPermission().toShort());
      all.mkdirs(at("wide/below"), new FsPermission((short) 0777));
      assertEquals(0777, all.getFileStatus(at("wide")).getPermission().toShort());
      all.setPermission(at("wide/below"), new FsPermission((short) 01777));
      assertEquals(01777, all.getFileStatus(at("wide/below")).getPermission().toShort());
    }
    fs.access(at("open"), FsAction.READ_WRITE);
    assertThrows(AccessControlException.class, () -> fs.access(at("open"), FsAction.EXECUTE));
    assertThrows(FileNotFoundException.class, () -> fs.access(at("none"), FsAction.READ));
    FsStatus room = fs.getStatus();
    assertTrue(room.getCapacity() >= room.getUsed() && room.getRemaining() > 0);
  }

  /** Many names, names that URIs would quote, links, globs, and a tree that is removed. */
  @Test
  public void namesOfAllKinds() throws IOException {
    for (String name : new String[] {"a b", "ä€", "%20", "a+b", "a#b?c"}) {
      put(at("names/" + name), name.getBytes(StandardCharsets.UTF_8));
      assertArrayEquals(name.getBytes(StandardCharsets.UTF_8), get(at("names/" + name)));
      assertEquals(at("names/" + name).getName(), fs.getFileStatus(at("names/" + name)).getPath()
          .getName());
    }
    assertEquals(5, fs.listStatus(at("names")).length);
    assertEquals(1, fs.globStatus(at("names/ä*")).length);
    for (int number = 0; number < 300; number++) {
      put(at("many/d" + number % 7 + "/" + number), new byte[number]);
    }
    long bytes = 0;
    RemoteIterator<FileStatus> statuses = fs.listStatusIterator(at("many/d3"));
    while (statuses.hasNext()) {
      bytes += statuses.next().getLen();
    }
    assertEquals(6450, bytes);
    assertEquals(300 * 299 / 2, fs.getContentSummary(at("many")).getLength());
    assertEquals("localhost",
        fs.getFileBlockLocations(at("many/d3/3"), 0, 3)[0].getHosts()[0]);
    assertTrue(fs.delete(at("many"), true));
    assertFalse(fs.exists(at("many")));
    assertFalse(fs.delete(at("many"), true));
  }

  /** Files are created where something, or nothing, is. */
  @Test
  public void creation() throws IOException {
    assertThrows(FileNotFoundException.class, () -> fs.createNonRecursive(at("none/file"), null,
        EnumSet.of(CreateFlag.CREATE), 4096, (short) 1, 1L << 20, null));
    put(at("file"), new byte[3]);
    assertThrows(FileAlreadyExistsException.class, () -> fs.create(at("file"), false));
    assertThrows(ParentNotDirectoryException.class, () -> fs.create(at("file/below")));
    assertThrows(FileAlreadyExistsException.class, () -> fs.create(TOP));
    assertThrows(FileNotFoundException.class, () -> fs.open(TOP));
    assertThrows(FileNotFoundException.class, () -> fs.open(at("file/below")));
  }

  /** Volumes by the two kinds of URIs; settings that do not fit are told. */
  @Test
  public void configuration() throws IOException {
    Configuration none = new Configuration();
    assertEquals("kestrel://meta1:9440/photos",
        Volume.url(URI.create("kestrel://photos@meta1:9440/a"), none));
    none.set("fs.kestrel.data.url", "s3://bucket/prefix");
    assertEquals("s3://bucket/prefix", Volume.url(URI.create("kestrel://data/a"), none));
    for (String bad : new String[] {"kestrel:///a", "kestrel://other/a"}) {
      IOException error =
          assertThrows(IOException.class, () -> Volume.url(URI.create(bad), none));
      assertTrue(error.getMessage(), error.getMessage().contains("kestrel://VOLUME@HOST"));
    }
    Configuration wrong = new Configuration(conf);
    wrong.set("fs.kestrel.tested.token", "no token");
    IOException error = assertThrows(IOException.class,
        () -> FileSystem.newInstance(URI.create(TestedVolume.URI), wrong));
    assertTrue(error.getMessage(), error.getMessage().contains("token"));
    Configuration readOnly = new Configuration(conf);
    readOnly.set("fs.kestrel.tested.read.only", "true");
    readOnly.set("fs.kestrel.deadline", "10s");
    try (FileSystem reader = FileSystem.newInstance(URI.create(TestedVolume.URI), readOnly)) {
      assertTrue(reader.exists(TOP));
      assertThrows(IOException.class, () -> reader.mkdirs(at("dir")));
    }
    Configuration other = new Configuration(conf);
    other.set("fs.kestrel.library", "/nowhere/libkestrel.so");
    assertThrows(IOException.class,
        () -> FileSystem.newInstance(URI.create(TestedVolume.URI), other));
  }

  /** A file system that is closed fails, and harms nobody. */
  @Test
  public void closedFileSystem() throws IOException {
    put(at("file"), new byte[10]);
    FileSystem closed = FileSystem.newInstance(URI.create(TestedVolume.URI), conf);
    FSDataInputStream in = closed.open(at("file"));
    closed.close();
    closed.close();
    assertThrows(IOException.class, () -> closed.getFileStatus(TOP));
    assertThrows(IOException.class, in::read);
    assertThrows(IOException.class, in::close);
    assertEquals(10, get(at("file")).length);
  }
}
