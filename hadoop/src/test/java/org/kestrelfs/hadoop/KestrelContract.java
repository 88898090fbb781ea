package org.kestrelfs.hadoop;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.contract.AbstractFSContract;

/** Hadoop's contract, as far as contract/kestrel.xml says that it is kept. */
final class KestrelContract extends AbstractFSContract {

  KestrelContract(Configuration conf) {
    super(TestedVolume.configure(conf));
    addConfResource("contract/kestrel.xml");
  }

  @Override
  public FileSystem getTestFileSystem() throws IOException {
    return FileSystem.get(URI.create(TestedVolume.URI), getConf());
  }

  @Override
  public String getScheme() {
    return KestrelFileSystem.SCHEME;
  }

  @Override
  public Path getTestPath() {
    return new Path("/contract");
  }
}
