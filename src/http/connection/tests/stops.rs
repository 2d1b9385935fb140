//! Connections while larder stops.

use tokio::sync::{mpsc, watch};

use super::*;

#[tokio::test]
async fn a_stop_answers_connections_that_wait_to_be_accepted() {
    // Stop and the client are there at once; either may be seen first.
    for _ in 0..20 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        client.write_all(REQUEST).await.unwrap();
        let router = Router::new().route("/", get(async || "text"));
        let here = vec![Handle::current()];
        let make = move |_| router.clone();
        serve_http(
            listener,
            make,
            |_, _, _| {},
            here,
            config(),
            std::future::ready(()),
        )
        .await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\ntext"), "{answer}");
    }
}

/// Sends a request and receives its answer.
async fn exchange(client: &mut TcpStream) {
    let mut answer = Vec::new();
    client.write_all(REQUEST).await.unwrap();
    while !answer.ends_with(b"\r\n\r\ntext") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
    }
}

/// Receives an answer with `Connection: close`, and the end.
async fn receive_last(client: &mut TcpStream) {
    let mut last = String::new();
    client.read_to_string(&mut last).await.unwrap();
    assert!(last.contains("\r\nconnection: close\r\n"), "{last}");
    assert!(last.ends_with("\r\n\r\ntext"), "{last}");
}

/// A client with a persistent connection may send its next request just after larder was commanded to stop. Closing at
/// once lost some of these requests at every stop under load.
#[tokio::test(start_paused = true)]
async fn a_stop_answers_the_next_request_with_connection_close() {
    let (mut client, stop, serving) = start("text".into()).await;
    exchange(&mut client).await;
    stop.send(()).unwrap();
    sleep(Duration::from_millis(200)).await;
    client.write_all(REQUEST).await.unwrap();
    receive_last(&mut client).await;
    serving.await.unwrap();
}

/// They were sent before the client knew that it was the last response, and it may send them again.
#[tokio::test]
async fn requests_behind_the_last_response_are_not_executed() {
    let (begin, mut begun) = mpsc::unbounded_channel();
    let (gate, mut opened) = watch::channel(false);
    let answer = async move || {
        begin.send(()).unwrap();
        opened.wait_for(|is_open| *is_open).await.unwrap();
        "text"
    };
    let router = Router::new().route("/", get(answer));
    let (address, stop, serving) = listen(router, config()).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&REQUEST.repeat(3)).await.unwrap();
    begun.recv().await.unwrap();
    stop.send(()).unwrap();
    // The drain has begun when the listener is closed.
    while TcpStream::connect(address).await.is_ok() {}
    gate.send_replace(true);
    receive_last(&mut client).await;
    serving.await.unwrap();
    assert_eq!(begun.recv().await, None);
}

/// larder ends soon although no client sends another request.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_kept_connection() {
    let (mut client, stop, serving) = start("text".into()).await;
    exchange(&mut client).await;
    let began = Instant::now();
    stop.send(()).unwrap();
    assert_eq!(read_all(&mut client).await, "");
    serving.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1));
}

/// The idle connections of a proxy held up each stop for some seconds, in which new connections were refused.
#[tokio::test(start_paused = true)]
async fn a_stop_closes_an_idle_connection_at_once() {
    let config = config();
    let (address, stop, serving) = listen(router("text".into()), config.clone()).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    exchange(&mut client).await;
    sleep(Duration::from_secs(5)).await;
    stop.send(()).unwrap();
    assert_eq!(read_all(&mut client).await, "");
    serving.await.unwrap();
    // It was not one of the checks, which count.
    assert_eq!(closed(&config, "idle"), 0);
}

/// The kernel has the request before larder knows that it is to stop. The runtime has not asked the kernel meanwhile.
#[tokio::test(start_paused = true)]
async fn a_stop_answers_what_an_idle_connection_has_received() {
    let (mut client, stop, serving) = start("text".into()).await;
    exchange(&mut client).await;
    sleep(Duration::from_secs(5)).await;
    client.try_write(REQUEST).unwrap();
    stop.send(()).unwrap();
    receive_last(&mut client).await;
    serving.await.unwrap();
}

/// Its request may be on its way in more than one packet.
#[tokio::test]
async fn a_stop_waits_for_the_rest_of_a_head() {
    let (mut client, stop, serving) = start("text".into()).await;
    let address = client.peer_addr().unwrap();
    exchange(&mut client).await;
    tokio::time::pause();
    sleep(Duration::from_secs(5)).await;
    tokio::time::resume();
    let (first, rest) = REQUEST.split_at(9);
    client.try_write(first).unwrap();
    stop.send(()).unwrap();
    // The drain has begun when the listener is closed.
    while TcpStream::connect(address).await.is_ok() {}
    client.write_all(rest).await.unwrap();
    receive_last(&mut client).await;
    serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_slow_reader() {
    let length = 64 << 20;
    let (mut client, stop, serving) = start("x".repeat(length)).await;
    client.write_all(REQUEST).await.unwrap();
    let mut answer = vec![0; 1];
    client.read_exact(&mut answer).await.unwrap();
    stop.send(()).unwrap();
    sleep(Duration::from_secs(60)).await;
    client.read_to_end(&mut answer).await.unwrap();
    assert!(answer.len() > length);
    serving.await.unwrap();
}

/// Over HTTP/2 the socket is not full: the flow control window of the client is.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_slow_reader_over_http2() {
    let length = 1 << 20;
    let (client, stop, serving) = start("x".repeat(length)).await;
    let (client, connection) = h2::client::handshake(client).await.unwrap();
    let reading = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::get("http://a/").body(()).unwrap();
    let (answer, _) = client.send_request(request, true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    stop.send(()).unwrap();
    sleep(Duration::from_secs(60)).await;
    let mut read = 0;
    while let Some(part) = body.data().await {
        let bytes = part.unwrap().len();
        body.flow_control().release_capacity(bytes).unwrap();
        read += bytes;
    }
    assert_eq!(read, length);
    drop(client);
    reading.await.unwrap().unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_finishes_requests() {
    let length = 8 << 20;
    let (mut reading, stop, serving) = start("x".repeat(length)).await;
    let mut half = TcpStream::connect(reading.peer_addr().unwrap())
        .await
        .unwrap();
    half.write_all(b"GET / HT").await.unwrap();
    reading.write_all(REQUEST).await.unwrap();
    let mut answer = vec![0; 1];
    reading.read_exact(&mut answer).await.unwrap();
    stop.send(()).unwrap();
    reading.read_to_end(&mut answer).await.unwrap();
    assert!(answer.len() > length);
    serving.await.unwrap();
}
