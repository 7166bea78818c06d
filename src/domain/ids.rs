//! The names of things, one type each, so that none can stand in another's place.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use uuid::Uuid;

macro_rules! uuid_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }
    };
}

uuid_name! {
    /// One request at the server. A run is named by the arrival that won its claim.
    RequestId
}
uuid_name! {
    /// One thing a client intended; stays with it over all its runs.
    OperationId
}
uuid_name! {
    /// One message of a conversation.
    TurnId
}
uuid_name! {
    /// One row of the outbox.
    EventId
}
uuid_name! {
    /// One API key; the key itself is never kept.
    ApiKeyId
}

macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }
    };
}

text_name! {
    /// Who is billed.
    TenantId
}
text_name! {
    /// An end user of a tenant.
    Subject
}
text_name! {
    /// Made by the client, 1 to 255 characters.
    ConversationId
}

/// A number that rises with every claim of the same key; only the holder of the newest may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Fence(pub i64);

impl fmt::Display for Fence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A serving process, or one of its lives: a node found dead comes back under a new id.
/// As narrow as the advisory lock that stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub i32);

impl fmt::Display for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
