import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * HadoopIo DIR FILES MIB: what TestDFSIO does, in one process: each of FILES threads writes a file
 * of MIB mebibytes, then reads one. Prints MiB a second of both. Written bytes are synced. For
 * bench/hadoop.py.
 */
public final class HadoopIo {

  private static final int PIECE = 1 << 20;

  private HadoopIo() {
  }

  /** A step of a file: it writes or reads all of it. */
  private interface Step {
    void run(Path file) throws Exception;
  }

  private static double rate(Path dir, int files, int mebibytes, Step step) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(files);
    long begun = System.nanoTime();
    List<Future<?>> running = new ArrayList<>();
    for (int number = 0; number < files; number++) {
      Path file = new Path(dir, "file" + number);
      running.add(threads.submit(() -> {
        step.run(file);
        return null;
      }));
    }
    for (Future<?> one : running) {
      one.get();
    }
    threads.shutdown();
    return files * mebibytes / ((System.nanoTime() - begun) / 1e9);
  }

  /** Writes and reads. */
  public static void main(String[] arguments) throws Exception {
    int files = Integer.parseInt(arguments[1]);
    int mebibytes = Integer.parseInt(arguments[2]);
    Path dir = new Path(arguments[0]);
    FileSystem fs = FileSystem.get(URI.create(arguments[0]), new Configuration());
    fs.setWriteChecksum(false);
    fs.setVerifyChecksum(false);
    byte[] bytes = new byte[PIECE];
    new Random(1).nextBytes(bytes);
    fs.mkdirs(dir);
    double written = rate(dir, files, mebibytes, file -> {
      try (FSDataOutputStream out = fs.create(file, true, PIECE)) {
        for (int piece = 0; piece < mebibytes; piece++) {
          out.write(bytes);
        }
        out.hsync();
      }
    });
    double read = rate(dir, files, mebibytes, file -> {
      byte[] room = new byte[PIECE];
      try (FSDataInputStream in = fs.open(file, PIECE)) {
        for (int piece = 0; piece < mebibytes; piece++) {
          in.readFully(room);
        }
      }
    });
    fs.delete(dir, true);
    fs.close();
    System.out.printf("%.1f %.1f%n", written, read);
  }
}
