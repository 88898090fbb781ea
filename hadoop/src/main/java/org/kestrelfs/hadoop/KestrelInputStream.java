package org.kestrelfs.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.hadoop.fs.ByteBufferPositionedReadable;
import org.apache.hadoop.fs.ByteBufferReadable;
import org.apache.hadoop.fs.CanUnbuffer;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.StreamCapabilities;

/**
 * An open file. Reads at the position go through a buffer; positioned ones use memory of their own,
 * so that threads that share the stream read side by side.
 */
final class KestrelInputStream extends FSInputStream
    implements ByteBufferReadable, ByteBufferPositionedReadable, CanUnbuffer, StreamCapabilities {

  /** Most bytes that are read with one call; direct memory is so large at most. */
  private static final int PIECE_BYTES = 4 << 20;

  private final long file;
  private final String path;
  private final int bufferBytes;
  private final FileSystem.Statistics statistics;
  private volatile boolean isClosed;
  /** Null: nothing was read yet, or unbuffer was called. From its position on is what follows. */
  private ByteBuffer buffer;
  /** Offset of the next byte. */
  private long position;

  KestrelInputStream(long file, String path, int bufferBytes, FileSystem.Statistics statistics) {
    this.file = file;
    this.path = path;
    this.bufferBytes = Math.min(Math.max(bufferBytes, 4096), PIECE_BYTES);
    this.statistics = statistics;
  }

  private void checkOpen() throws IOException {
    if (isClosed) {
      throw new IOException(path + ": " + FSExceptionMessages.STREAM_IS_CLOSED);
    }
  }

  /** Reads into the rest of a direct buffer: how many bytes, 0 at the end of the file. */
  private int fill(ByteBuffer direct, long offset) throws IOException {
    long read = LibKestrel.kestrel_pread(file, direct.slice(), direct.remaining(), offset);
    return (int) LibKestrel.check(read, path);
  }

  private void noteRead(int bytes) {
    if (statistics != null && bytes > 0) {
      statistics.incrementBytesRead(bytes);
    }
  }

  private int bufferedBytes() {
    return buffer == null ? 0 : buffer.remaining();
  }

  /** Has at least a byte in the buffer, unless the file is at its end. */
  private boolean hasNext() throws IOException {
    if (bufferedBytes() > 0) {
      return true;
    }
    if (buffer == null) {
      buffer = ByteBuffer.allocateDirect(bufferBytes);
    }
    buffer.clear();
    // Empty, should the read fail.
    buffer.limit(0);
    ByteBuffer room = buffer.duplicate();
    room.clear();
    int read = fill(room, position);
    buffer.limit(read);
    return read > 0;
  }

  @Override
  public synchronized int read() throws IOException {
    checkOpen();
    if (!hasNext()) {
      return -1;
    }
    position++;
    noteRead(1);
    return buffer.get() & 0xff;
  }

  @Override
  public synchronized int read(byte[] bytes, int offset, int len) throws IOException {
    checkOpen();
    if (offset < 0 || len < 0 || len > bytes.length - offset) {
      throw new IndexOutOfBoundsException();
    }
    if (len == 0) {
      return 0;
    }
    if (!hasNext()) {
      return -1;
    }
    int taken = Math.min(len, buffer.remaining());
    buffer.get(bytes, offset, taken);
    position += taken;
    noteRead(taken);
    return taken;
  }

  @Override
  public synchronized int read(ByteBuffer out) throws IOException {
    checkOpen();
    if (!out.hasRemaining()) {
      return 0;
    }
    int taken;
    if (out.isDirect() && bufferedBytes() == 0) {
      taken = fill(out, position);
      out.position(out.position() + taken);
    } else if (hasNext()) {
      ByteBuffer some = buffer.duplicate();
      taken = Math.min(out.remaining(), some.remaining());
      some.limit(some.position() + taken);
      out.put(some);
      buffer.position(buffer.position() + taken);
    } else {
      taken = 0;
    }
    position += taken;
    noteRead(taken);
    return taken == 0 ? -1 : taken;
  }

  @Override
  public int read(long offset, byte[] bytes, int at, int len) throws IOException {
    checkOpen();
    validatePositionedReadArgs(offset, bytes, at, len);
    if (len == 0) {
      return 0;
    }
    int done = 0;
    ByteBuffer memory = ByteBuffer.allocateDirect(Math.min(len, PIECE_BYTES));
    while (done < len) {
      memory.clear();
      memory.limit(Math.min(len - done, memory.capacity()));
      int read = fill(memory, offset + done);
      memory.limit(read);
      memory.get(bytes, at + done, read);
      done += read;
      if (read < memory.capacity() && done < len) {
        break;
      }
    }
    noteRead(done);
    return done == 0 ? -1 : done;
  }

  @Override
  public int read(long offset, ByteBuffer out) throws IOException {
    checkOpen();
    if (offset < 0) {
      throw new EOFException(FSExceptionMessages.NEGATIVE_SEEK);
    }
    if (!out.hasRemaining()) {
      return 0;
    }
    int done;
    if (out.isDirect()) {
      done = fill(out, offset);
      out.position(out.position() + done);
    } else {
      ByteBuffer memory = ByteBuffer.allocateDirect(Math.min(out.remaining(), PIECE_BYTES));
      done = fill(memory, offset);
      memory.limit(done);
      out.put(memory);
    }
    noteRead(done);
    return done == 0 ? -1 : done;
  }

  @Override
  public void readFully(long offset, ByteBuffer out) throws IOException {
    long at = offset;
    while (out.hasRemaining()) {
      int read = read(at, out);
      if (read < 0) {
        throw new EOFException(FSExceptionMessages.EOF_IN_READ_FULLY);
      }
      at += read;
    }
  }

  @Override
  public synchronized void seek(long to) throws IOException {
    checkOpen();
    if (to < 0) {
      throw new EOFException(FSExceptionMessages.NEGATIVE_SEEK + ": " + to);
    }
    if (to == position) {
      return;
    }
    if (to > position && to - position <= bufferedBytes()) {
      buffer.position(buffer.position() + (int) (to - position));
    } else {
      if (to > fileBytes()) {
        throw new EOFException(FSExceptionMessages.CANNOT_SEEK_PAST_EOF + ": " + to);
      }
      if (buffer != null) {
        buffer.limit(0);
      }
    }
    position = to;
  }

  private long fileBytes() throws IOException {
    com.sun.jna.Memory memory = new com.sun.jna.Memory(Attributes.BYTES);
    LibKestrel.check(LibKestrel.kestrel_fstat(file, memory), path);
    return new Attributes(memory, 0).size;
  }

  @Override
  public synchronized long skip(long bytes) throws IOException {
    checkOpen();
    long some = Math.max(0, Math.min(bytes, fileBytes() - position));
    seek(position + some);
    return some;
  }

  @Override
  public synchronized int available() throws IOException {
    checkOpen();
    return (int) Math.min(Integer.MAX_VALUE, Math.max(0, fileBytes() - position));
  }

  @Override
  public synchronized long getPos() {
    return position;
  }

  @Override
  public boolean seekToNewSource(long target) {
    return false;
  }

  @Override
  public synchronized void unbuffer() {
    buffer = null;
  }

  @Override
  public boolean hasCapability(String capability) {
    switch (capability.toLowerCase(java.util.Locale.ROOT)) {
      case StreamCapabilities.READBYTEBUFFER:
      case StreamCapabilities.PREADBYTEBUFFER:
      case StreamCapabilities.UNBUFFER:
        return true;
      default:
        return false;
    }
  }

  @Override
  public synchronized void close() throws IOException {
    if (isClosed) {
      return;
    }
    isClosed = true;
    buffer = null;
    LibKestrel.check(LibKestrel.kestrel_close(file), path);
  }
}
