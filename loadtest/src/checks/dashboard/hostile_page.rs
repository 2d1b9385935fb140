//! A web page of another origin, which tries to use an admin address through the browser of its visitor.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The page tries all ways that a page has, then sets its title. `ADMIN` is the admin address.
const PAGE: &str = "<!doctype html><title>trying</title><iframe name=frame></iframe>
<form method=post target=frame action='ADMIN/purge/orders'></form>
<script>
const read = [];
const get = (path) => fetch('ADMIN' + path)
    .then((response) => response.text()).then((text) => read.push(text)).catch(() => {});
const post = (path, options) => fetch('ADMIN' + path, { method: 'POST', ...options }).catch(() => {});
document.forms[0].submit();
const image = new Image();
image.src = 'ADMIN/status';
navigator.sendBeacon('ADMIN/purge/orders/1');
Promise.all([
    post('/purge/orders', { mode: 'no-cors' }),
    post('/purge/orders/1', { mode: 'no-cors', credentials: 'include', body: 'x' }),
    post('/purge/orders', { headers: { 'X-Any': '1' } }),
    fetch('ADMIN/log-level', { method: 'PUT', body: 'trace' }).catch(() => {}),
    get('/status'), get('/recent'), get('/history'), get('/config'), get('/explain/orders/1'), get('/'),
]).then(() => setTimeout(() => { window.stolen = read; document.title = 'tried'; }, 500));
</script>";

/// Serves it at `address` until it is dropped.
pub(super) struct HostilePage(JoinHandle<()>);

impl HostilePage {
    pub(super) async fn start(address: SocketAddr, admin: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.context("hostile page")?;
        let page = PAGE.replace("ADMIN", &format!("http://{admin}"));
        let response = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
            page.len()
        );
        Ok(Self(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // Every request is answered with the page, even one whose head is not complete.
                let mut head = [0; 4096];
                if stream.read(&mut head).await.is_ok()
                    && stream.write_all(response.as_bytes()).await.is_ok()
                {
                    drop(stream.shutdown().await);
                }
            }
        })))
    }
}

impl Drop for HostilePage {
    fn drop(&mut self) {
        self.0.abort();
    }
}
