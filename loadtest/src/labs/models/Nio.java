import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * One thread that waits by a selector, and a pool of workers that read and write.
 *
 * <p>{@code java Nio.java RESPONSE SELECTOR BACKLOG WORKERS READ_BYTES HEAD_BYTES_MAX} writes its address to stdout, and 0
 * once stdin ends: it closes no connection without an answer. SELECTOR is Poll or EPoll.
 */
class Nio {
  private static final byte[] TOO_LARGE =
      ("HTTP/1.1 431 Request Header Fields Too Large\r\n" + "content-length: 0\r\nconnection: close\r\n\r\n")
          .getBytes(StandardCharsets.US_ASCII);
  private static final byte[] END = {'\r', '\n', '\r', '\n'};

  private static byte[] response;
  private static int readBytes;
  private static int headBytesMax;
  private static ThreadLocal<ByteBuffer> buffers;

  public static void main(String[] arguments) throws IOException {
    response = Files.readAllBytes(Path.of(arguments[0]));
    String provider = "sun.nio.ch." + arguments[1] + "SelectorProvider";
    System.setProperty("java.nio.channels.spi.SelectorProvider", provider);
    int backlog = Integer.parseInt(arguments[2]);
    ExecutorService workers = Executors.newFixedThreadPool(Integer.parseInt(arguments[3]));
    readBytes = Integer.parseInt(arguments[4]);
    headBytesMax = Integer.parseInt(arguments[5]);
    buffers = ThreadLocal.withInitial(() -> ByteBuffer.allocateDirect(readBytes));
    Selector selector = Selector.open();
    ServerSocketChannel listener = ServerSocketChannel.open();
    listener.bind(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0), backlog);
    listener.configureBlocking(false);
    listener.register(selector, SelectionKey.OP_ACCEPT);
    System.out.println("127.0.0.1:" + listener.socket().getLocalPort());
    Thread end = new Thread(Nio::awaitEnd);
    end.setDaemon(true);
    end.start();
    while (true) {
      selector.select(
          key -> {
            if (key.isAcceptable()) {
              accept(listener, selector);
            } else {
              key.interestOps(0);
              workers.execute(() -> advance(key));
            }
          });
    }
  }

  private static void awaitEnd() {
    try {
      System.in.readAllBytes();
    } catch (IOException error) {
      System.exit(1);
    }
    System.out.println(0);
    System.exit(0);
  }

  private static void accept(ServerSocketChannel listener, Selector selector) {
    try {
      for (SocketChannel channel = listener.accept(); channel != null; channel = listener.accept()) {
        channel.configureBlocking(false);
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.register(selector, SelectionKey.OP_READ, new Conversation());
      }
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Reads once and answers the requests that end there, then waits for more. */
  private static void advance(SelectionKey key) {
    SocketChannel channel = (SocketChannel) key.channel();
    ByteBuffer buffer = buffers.get().clear();
    try {
      int read = channel.read(buffer);
      ByteBuffer output = read < 0 ? null : ((Conversation) key.attachment()).answer(buffer.flip());
      // A worker waits until the client has taken the answers.
      while (output != null && output.hasRemaining()) {
        channel.write(output);
      }
      if (read < 0 || ((Conversation) key.attachment()).isOver) {
        channel.close();
        return;
      }
      key.interestOps(SelectionKey.OP_READ);
      key.selector().wakeup();
    } catch (IOException error) {
      key.cancel();
      try {
        channel.close();
      } catch (IOException closing) {
        // It is gone either way.
      }
    }
  }

  /** What a connection remembers from one read to the next. */
  private static final class Conversation {
    /** How much of the empty line that ends a head has been seen. */
    private int seen;
    private int headBytes;
    private boolean isOver;

    ByteBuffer answer(ByteBuffer input) {
      int count = 0;
      while (input.hasRemaining() && !isOver) {
        byte next = input.get();
        headBytes += 1;
        seen = next == END[seen] ? seen + 1 : next == END[0] ? 1 : 0;
        isOver = headBytes > headBytesMax;
        if (seen == END.length && !isOver) {
          count += 1;
          seen = 0;
          headBytes = 0;
        }
      }
      ByteBuffer output = ByteBuffer.allocate(count * response.length + (isOver ? TOO_LARGE.length : 0));
      for (int place = 0; place < count; place++) {
        output.put(response);
      }
      if (isOver) {
        output.put(TOO_LARGE);
      }
      return output.flip();
    }
  }
}
