package org.kestrelfs.hadoop;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.util.Locale;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.Syncable;

/**
 * A file that is written. {@code hflush} commits what was written, so that others see it;
 * {@code hsync} also makes it durable; {@code close} does as {@code hflush}.
 */
final class KestrelOutputStream extends OutputStream implements Syncable, StreamCapabilities {

  private static final int BUFFER_BYTES_MAX = 4 << 20;

  private final long file;
  private final String path;
  private final ByteBuffer buffer;
  private boolean isClosed;

  KestrelOutputStream(long file, String path, int bufferBytes) {
    this.file = file;
    this.path = path;
    this.buffer = ByteBuffer.allocateDirect(Math.min(Math.max(bufferBytes, 4096),
        BUFFER_BYTES_MAX));
  }

  private void checkOpen() throws IOException {
    if (isClosed) {
      throw new ClosedChannelException();
    }
  }

  /** Gives what is in the buffer to the library, which writes all of it or fails. */
  private void drain() throws IOException {
    buffer.flip();
    try {
      if (buffer.hasRemaining()) {
        LibKestrel.check(LibKestrel.kestrel_write(file, buffer.slice(), buffer.remaining()), path);
      }
    } finally {
      buffer.clear();
    }
  }

  @Override
  public synchronized void write(int one) throws IOException {
    checkOpen();
    if (!buffer.hasRemaining()) {
      drain();
    }
    buffer.put((byte) one);
  }

  @Override
  public synchronized void write(byte[] bytes, int offset, int len) throws IOException {
    checkOpen();
    if (offset < 0 || len < 0 || len > bytes.length - offset) {
      throw new IndexOutOfBoundsException();
    }
    int done = 0;
    while (done < len) {
      if (!buffer.hasRemaining()) {
        drain();
      }
      int some = Math.min(len - done, buffer.remaining());
      buffer.put(bytes, offset + done, some);
      done += some;
    }
  }

  @Override
  public synchronized void flush() throws IOException {
    checkOpen();
    drain();
  }

  @Override
  public synchronized void hflush() throws IOException {
    flush();
    LibKestrel.check(LibKestrel.kestrel_flush(file), path);
  }

  @Override
  public synchronized void hsync() throws IOException {
    flush();
    LibKestrel.check(LibKestrel.kestrel_fsync(file), path);
  }

  @Override
  public boolean hasCapability(String capability) {
    switch (capability.toLowerCase(Locale.ROOT)) {
      case StreamCapabilities.HFLUSH:
      case StreamCapabilities.HSYNC:
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
    IOException failure = null;
    try {
      drain();
    } catch (IOException error) {
      failure = error;
    }
    long closed = LibKestrel.kestrel_close(file);
    if (failure != null) {
      throw failure;
    }
    LibKestrel.check(closed, path);
  }
}
