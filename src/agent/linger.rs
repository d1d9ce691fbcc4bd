//! The last bytes of a pod. What HAProxy has written lies with the kernel, which sends it on after HAProxy has ended, but
//! only as long as the pod has its network: that goes with the pod's last container. A client that reads slowly lost the
//! end of a download that way (seen on a cluster: up to some megabytes lie in a socket's send buffer). So the agent, whose
//! container ends last, stays until all of it is sent, or until the drain's time is over.

use super::stop;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Where the kernel lists the sockets of the pod: `proc_net_tcp(5)`.
const SOCKETS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(100);
/// `FIN_WAIT1`, `LAST_ACK` and `CLOSING`: closed here, and something is not confirmed by the other side yet.
const CLOSED_HERE: [&str; 3] = ["04", "09", "0B"];

/// Waits until everything that was written to clients of `ports` is sent, for at most as long as the stop of the pod whose
/// files are in `directory` has left. At once if no stop began.
pub async fn until_all_is_sent(directory: &Path, ports: &[u16]) {
    let Some(left) = stop::time_left(directory) else { return };
    let end = Instant::now() + left;
    while Instant::now() < end {
        let tables = SOCKETS.map(|path| std::fs::read_to_string(path).unwrap_or_default());
        if tables.iter().all(|table| unsent(table, ports) == 0) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How many sockets of `ports` are closed here and have not sent everything yet.
fn unsent(table: &str, ports: &[u16]) -> usize {
    let is_unsent = |line: &&str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit_once(':')).and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        let state = fields.nth(1).unwrap_or_default();
        local.is_some_and(|port| ports.contains(&port)) && CLOSED_HERE.contains(&state)
    };
    table.lines().skip(1).filter(is_unsent).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_socket_that_is_closed_and_has_bytes_left_is_seen_until_they_are_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let count = || unsent(&std::fs::read_to_string(SOCKETS[0]).unwrap(), &[port]);
        assert_eq!(count(), 0);
        server.set_nonblocking(true).unwrap();
        // more than the client's side takes in by itself
        while server.write(&[0; 4096]).is_ok() {}
        drop(server);
        assert_eq!(count(), 1, "it is closed, and not sent");
        client.read_to_end(&mut Vec::new()).unwrap();
        drop(client);
        assert_eq!(count(), 0);
    }

    #[test]
    fn sockets_of_others_do_not_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 0100007F:9C40 04 00000400:00000000 01:00000018 00000000  1000        0 1 1 0 20 4 30 10 -1
   1: 0100007F:1F90 0100007F:9C41 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 20 4 30 10 -1
   2: 0100007F:0016 0100007F:9C42 04 00000400:00000000 01:00000018 00000000     0        0 3 1 0 20 4 30 10 -1
   3: 0100007F:20FB 0100007F:9C43 09 00000001:00000000 01:00000018 00000000  1000        0 4 1 0 20 4 30 10 -1
";
        assert_eq!(unsent(table, &[8080, 8443]), 2);
        assert_eq!(unsent(table, &[9]), 0);
        assert_eq!(unsent("", &[8080]), 0);
    }

    #[tokio::test]
    async fn nothing_is_waited_for_where_no_stop_began() {
        let directory = tempfile::tempdir().unwrap();
        until_all_is_sent(directory.path(), &[80]).await;
    }
}
