//! A session with the server, just large enough to see that it serves our database and to create
//! that where it is missing. Written against version 3 of PostgreSQL's protocol, because the
//! packages that hold the server need not hold a client.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The superuser that `initdb` is told to make; the socket's folder is what guards it.
pub(super) const USER: &str = "postgres";

/// The database of the product.
pub(super) const DATABASE: &str = "oncekey";

/// How long one answer may take. Creating a database writes a few megabytes.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Protocol 3.0, which every supported server speaks.
const PROTOCOL: i32 = 3 << 16;

/// Longest message taken, in bytes: those of a start and of a refusal are far shorter.
const MESSAGE_LIMIT: usize = 1 << 16;

/// SQLSTATE of a database that does not exist.
const NO_SUCH_DATABASE: &str = "3D000";

/// Why a session or a statement failed.
#[derive(Debug)]
pub(super) enum SessionError {
    /// Refused by the server.
    Refused { code: String, message: String },
    /// The connection failed or what came over it was not understood.
    Broken(io::Error),
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused { code, message } => write!(f, "{message} ({code})"),
            Self::Broken(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for SessionError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Opens and closes a session in our database: the server serves.
pub(super) fn check(socket: &Path) -> Result<(), SessionError> {
    Session::open(socket, DATABASE).map(drop)
}

/// Creates our database where it is missing.
pub(super) fn ensure_database(socket: &Path) -> Result<(), SessionError> {
    match check(socket) {
        Err(SessionError::Refused { code, .. }) if code == NO_SUCH_DATABASE => {
            Session::open(socket, "postgres")?.run(&format!("CREATE DATABASE {DATABASE}"))?;
            check(socket)
        }
        other => other,
    }
}

struct Session {
    stream: UnixStream,
}

impl Session {
    fn open(socket: &Path, database: &str) -> Result<Self, SessionError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        let mut session = Self { stream };
        let mut body = PROTOCOL.to_be_bytes().to_vec();
        for text in ["user", USER, "database", database, ""] {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        session.send(&[], &body)?;
        session.until_ready()?;
        Ok(session)
    }

    fn run(&mut self, statement: &str) -> Result<(), SessionError> {
        let mut body = statement.as_bytes().to_vec();
        body.push(0);
        self.send(b"Q", &body)?;
        self.until_ready()
    }

    fn send(&mut self, kind: &[u8], body: &[u8]) -> Result<(), SessionError> {
        let length = i32::try_from(body.len() + 4).map_err(|_| unexpected("a long message"))?;
        self.stream.write_all(&[kind, &length.to_be_bytes(), body].concat())?;
        Ok(())
    }

    /// Reads up to the server's "ready". A refusal before that is the result; at the start of a
    /// session the server closes after it.
    fn until_ready(&mut self) -> Result<(), SessionError> {
        let mut refused = None;
        loop {
            let (kind, body) = match self.receive() {
                Ok(message) => message,
                Err(error) => return Err(refused.unwrap_or(error)),
            };
            match (kind, body.as_slice()) {
                (b'Z', _) => return refused.map_or(Ok(()), Err),
                (b'E', fields) => refused = Some(refusal(fields)),
                (b'R', [0, 0, 0, 0]) => {}
                (b'R', _) => return Err(unexpected("a password was asked for")),
                _ => {}
            }
        }
    }

    fn receive(&mut self) -> Result<(u8, Vec<u8>), SessionError> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or_default();
        if !(4..=MESSAGE_LIMIT).contains(&length) {
            return Err(unexpected("a message of impossible length"));
        }
        let mut body = vec![0; length - 4];
        self.stream.read_exact(&mut body)?;
        Ok((kind, body))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A polite end; the server copes without one.
        let _ = self.send(b"X", &[]);
    }
}

/// Fields of a refusal: a letter and a text each, ended by zero bytes.
fn refusal(fields: &[u8]) -> SessionError {
    let field = |letter: u8| {
        let found = fields.split(|byte| *byte == 0).find(|field| field.first() == Some(&letter));
        found.map(|field| String::from_utf8_lossy(&field[1..]).into_owned()).unwrap_or_default()
    };
    SessionError::Refused { code: field(b'C'), message: field(b'M') }
}

fn unexpected(what: &str) -> SessionError {
    SessionError::Broken(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_by_its_letters() {
        let fields = b"SFATAL\0VFATAL\0C3D000\0Mdatabase \"oncekey\" does not exist\0\0";
        assert_eq!(refusal(fields).to_string(), "database \"oncekey\" does not exist (3D000)");
    }
}
