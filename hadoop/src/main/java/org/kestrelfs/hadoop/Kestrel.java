package org.kestrelfs.hadoop;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;

/** KestrelFS for {@code FileContext}: the same as {@link KestrelFileSystem}. */
public class Kestrel extends DelegateToFileSystem {

  /**
   * What Hadoop makes when {@code fs.AbstractFileSystem.kestrel.impl} names it.
   *
   * @param uri the volume
   * @param conf the configuration
   * @throws IOException if the volume cannot be opened
   * @throws URISyntaxException if the URI is none
   */
  public Kestrel(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(uri, new KestrelFileSystem(), conf, KestrelFileSystem.SCHEME, false);
  }

  /** As for kestrel:// without a port: an authority need not be a host. */
  @Override
  public int getUriDefaultPort() {
    return -1;
  }

  /** At once, also over what is there. */
  @Override
  public void renameInternal(Path from, Path to, boolean overwrite) throws IOException {
    ((KestrelFileSystem) fsImpl).replace(from, to,
        overwrite ? Options.Rename.OVERWRITE : Options.Rename.NONE);
  }
}
