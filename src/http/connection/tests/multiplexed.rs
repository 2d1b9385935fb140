//! How long HTTP/2 clients may take to read, even if they send other frames.

use super::*;

/// An HTTP/2 client that accepts `window` bytes and sends a ping every 30 s; the response to its only request.
async fn pinging(
    address: SocketAddr,
    window: u32,
) -> (h2::client::ResponseFuture, tokio::task::JoinHandle<()>) {
    let client = TcpStream::connect(address).await.unwrap();
    // Else the kernel keeps small writes back, by a clock that is not paused.
    client.set_nodelay(true).unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (client, mut connection) = builder.handshake::<_, Bytes>(client).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let _ended = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::get("http://a/").body(()).unwrap();
    let (answer, _) = client.send_request(request, true).unwrap();
    let pinging = tokio::spawn(async move {
        for _ in 0..30 {
            if pings.ping(h2::Ping::opaque()).await.is_err() {
                break;
            }
            sleep(Duration::from_secs(30)).await;
        }
        drop(client);
    });
    (answer, pinging)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pings_and_does_not_read_is_disconnected() {
    let config = config();
    let router = Router::new().route("/", get(async || "x".repeat(1 << 20)));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let began = Instant::now();
    let (answer, pinging) = pinging(address, 0).await;
    let _unread = answer.await.unwrap();
    pinging.await.unwrap();
    let seconds = began.elapsed().as_secs();
    assert!((60..=92).contains(&seconds), "{seconds}");
    assert_eq!(closed(&config, "write"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_only_pings_is_disconnected() {
    let config = config();
    let router = Router::new().route("/", get(async || "text"));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let began = Instant::now();
    let (answer, pinging) = pinging(address, 1 << 16).await;
    answer.await.unwrap();
    pinging.await.unwrap();
    let seconds = began.elapsed().as_secs();
    assert!((75..=122).contains(&seconds), "{seconds}");
    assert_eq!(closed(&config, "idle"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_over_http2_is_received() {
    let config = config();
    let slow = async || {
        sleep(Duration::from_secs(100)).await;
        "text"
    };
    let router = Router::new().route("/", get(slow));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let (answer, pinging) = pinging(address, 1 << 16).await;
    answer.await.unwrap();
    // The time of an idle connection begins at its end.
    sleep(Duration::from_secs(60)).await;
    assert_eq!(closed(&config, "idle") + closed(&config, "write"), 0);
    pinging.abort();
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_over_http2_receives_all() {
    let config = config();
    let length = 1 << 20;
    let router = Router::new().route("/", get(async || "x".repeat(1 << 20)));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let (answer, pinging) = pinging(address, 1 << 15).await;
    let mut body = answer.await.unwrap().into_body();
    let mut read = 0;
    while read < length {
        let part = body.data().await.unwrap().unwrap();
        body.flow_control().release_capacity(part.len()).unwrap();
        read += part.len();
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(closed(&config, "idle") + closed(&config, "write"), 0);
    pinging.abort();
}

#[tokio::test(start_paused = true)]
async fn a_slow_stream_over_http2_requires_no_reads() {
    let config = config();
    let slow = async || {
        let lines = stream::iter(0..6).then(|_| async {
            sleep(Duration::from_secs(30)).await;
            Ok::<_, Infallible>("line")
        });
        Body::from_stream(lines)
    };
    let router = Router::new().route("/", get(slow));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let (answer, pinging) = pinging(address, 1 << 16).await;
    let mut body = answer.await.unwrap().into_body();
    let mut read = 0;
    while let Some(part) = body.data().await {
        read += part.unwrap().len();
    }
    assert_eq!(read, 24);
    assert_eq!(closed(&config, "idle") + closed(&config, "write"), 0);
    pinging.abort();
}
