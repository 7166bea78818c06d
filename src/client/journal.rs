//! Operations that outlive the app that began them.

use super::operation::{Endpoint, Operation};

/// What a journal could not do; the operation is then not sent.
pub type JournalError = Box<dyn std::error::Error + Send + Sync>;

/// Keeps what was begun, so that an app that was killed in the middle asks for its answer again instead
/// of asking anew.
///
/// ```no_run
/// use std::path::PathBuf;
/// use oncekey::client::{Chat, Client, ClientError, Journal, JournalError, Operation};
///
/// /// A file for each operation that has no verdict yet. Its keys are minted by the client: one of your
/// /// own may hold what no file name can ("job/17").
/// struct Folder(PathBuf);
///
/// impl Journal for Folder {
///     fn begun(&self, key: &str, operation: &[u8]) -> Result<(), JournalError> {
///         Ok(std::fs::write(self.0.join(key), operation)?)
///     }
///
///     fn ended(&self, key: &str) {
///         // One that is left is asked for once more, and replayed.
///         let _ = std::fs::remove_file(self.0.join(key));
///     }
/// }
///
/// /// At the next start: the same key, the same bytes.
/// async fn go_on(client: &Client, kept: &[u8]) -> Result<String, ClientError> {
///     let operation: Operation<Chat> = Operation::from_kept(kept)?;
///     Ok(client.send(&operation).await?.answer.message.content)
/// }
///
/// # fn build(folder: PathBuf) -> Result<Client, ClientError> {
/// Client::builder("https://oncekey.example", "ok_…").journal(Folder(folder)).build()
/// # }
/// ```
pub trait Journal: Send + Sync {
    /// Called once for an operation, before its first byte is sent. `operation` is what
    /// [`Operation::from_kept`] takes.
    ///
    /// # Errors
    /// Whatever kept it from being kept; then nothing is sent.
    fn begun(&self, key: &str, operation: &[u8]) -> Result<(), JournalError>;

    /// Called when nothing more is to be had: an answer, or a refusal that stays the same. Not called
    /// where the same key may still bring an answer.
    fn ended(&self, key: &str);
}

/// The operation in the form in which it is kept.
pub(super) fn kept<E: Endpoint>(operation: &Operation<E>) -> Result<Vec<u8>, JournalError> {
    Ok(serde_json::to_vec(operation)?)
}
