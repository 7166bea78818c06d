//! Names to addresses for webhooks: only to public ones.
//!
//! It is asked for every new connection, and the connection goes to what it answers. So a name that
//! was public when the configuration was read and is private now gets nothing.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::domain::public_address::is_public;

/// A name leads into a private network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is a private address, and allow_private is off")]
pub(super) struct PrivateAddress(pub(super) IpAddr);

type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// A way to look names up.
pub(super) type LookUp = fn(String) -> Found;

/// The system's.
pub(super) fn system(host: String) -> Found {
    Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) })
}

/// Refuses a name of which any address is private: which one a connection takes is not ours to say.
pub(super) struct PublicOnly(pub(super) LookUp);

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let found = (self.0)(name.as_str().to_owned());
        Box::pin(async move {
            let addresses = found.await?;
            match addresses.iter().find(|address| !is_public(address.ip())) {
                Some(private) => Err(PrivateAddress(private.ip()).into()),
                None => Ok(Box::new(addresses.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    async fn resolved(look_up: LookUp) -> Result<Vec<SocketAddr>, String> {
        let name: Name = "hooks.example".parse().unwrap();
        let found = PublicOnly(look_up).resolve(name).await;
        found.map(Iterator::collect).map_err(|error| error.to_string())
    }

    fn answers(texts: &[&str]) -> Found {
        let addresses: Vec<SocketAddr> =
            texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect();
        Box::pin(async move { Ok(addresses) })
    }

    #[tokio::test]
    async fn one_private_address_among_public_ones_is_enough() {
        assert_eq!(resolved(|_| answers(&["1.1.1.1", "2606:4700::1"])).await.unwrap().len(), 2);
        for bad in ["127.0.0.1", "::1", "169.254.169.254", "::ffff:10.0.0.1"] {
            let error = match bad {
                "127.0.0.1" => resolved(|_| answers(&["1.1.1.1", "127.0.0.1"])).await,
                "::1" => resolved(|_| answers(&["::1", "1.1.1.1"])).await,
                "169.254.169.254" => resolved(|_| answers(&["169.254.169.254"])).await,
                _ => resolved(|_| answers(&["1.1.1.1", "::ffff:10.0.0.1"])).await,
            };
            assert!(error.unwrap_err().contains("is a private address"), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_at_each_connection() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let rebinds: LookUp = |_| match ASKED.fetch_add(1, Ordering::Relaxed) {
            0 => answers(&["1.1.1.1"]),
            _ => answers(&["127.0.0.1"]),
        };
        assert!(resolved(rebinds).await.is_ok());
        assert!(resolved(rebinds).await.is_err());
    }

    #[tokio::test]
    async fn what_the_system_finds_is_judged() {
        let name: Name = "localhost".parse().unwrap();
        assert!(PublicOnly(system).resolve(name).await.is_err());
    }
}
