package org.kestrelfs.hadoop;

import java.net.URI;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileContextMainOperationsBaseTest;
import org.apache.hadoop.fs.FileContextTestHelper;
import org.apache.hadoop.conf.Configuration;
import org.junit.Before;

/** Hadoop's tests of FileContext, which uses the AbstractFileSystem. */
public class FileContextTest extends FileContextMainOperationsBaseTest {

  @Before
  @Override
  public void setUp() throws Exception {
    fc = FileContext.getFileContext(URI.create(TestedVolume.URI),
        TestedVolume.configure(new Configuration()));
    super.setUp();
  }

  @Override
  protected FileContextTestHelper createFileContextHelper() {
    return new FileContextTestHelper("/context");
  }

  @Override
  protected boolean listCorruptedBlocksSupported() {
    return false;
  }
}
