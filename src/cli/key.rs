//! `oncekey key create`, `list` and `revoke`.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use uuid::Uuid;

use super::Failure;
use super::database::{Named, with_store};
use crate::clock::Clock;
use crate::config::Config;
use crate::domain::api_key::{ApiKey, ApiRole};
use crate::domain::ids::{ApiKeyId, TenantId};
use crate::store::{NewApiKey, Store};

#[derive(Args)]
pub struct Key {
    #[command(flatten)]
    pub database: Named,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a key; it alone is printed on standard output, and only this once.
    Create {
        /// Who is billed for what is done with it.
        #[arg(long)]
        tenant: String,
        #[arg(long)]
        role: Role,
        /// Bind the key to one end user.
        #[arg(long)]
        subject: Option<String>,
    },
    /// All keys, by id; none can be shown again.
    List,
    /// From now on a key is unknown.
    Revoke { id: Uuid },
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Client,
    Finance,
    Operator,
}

impl From<Role> for ApiRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Client => ApiRole::Client,
            Role::Finance => ApiRole::Finance,
            Role::Operator => ApiRole::Operator,
        }
    }
}

/// A new key, and the row that is kept of it.
pub fn new_key(
    clock: &Clock,
    tenant: &str,
    role: ApiRole,
    subject: Option<String>,
) -> (ApiKey, NewApiKey) {
    let key = ApiKey::from_secret(clock.secret());
    let row = NewApiKey {
        tenant: TenantId::new(tenant),
        id: ApiKeyId(clock.new_id()),
        hash: key.hash(),
        role: role.as_str().to_owned(),
        subject,
    };
    (key, row)
}

pub async fn run(command: Key, config: Config) -> Result<ExitCode, Failure> {
    if let Action::Create { tenant, subject, .. } = &command.action {
        check("--tenant", tenant)?;
        subject.as_ref().map_or(Ok(()), |subject| check("--subject", subject))?;
    }
    with_store(&config, |store| async move {
        match command.action {
            Action::Create { tenant, role, subject } => {
                create(&store, &tenant, role.into(), subject).await
            }
            Action::List => list(&store).await,
            Action::Revoke { id } => revoke(&store, id).await,
        }
    })
    .await
}

/// Refuses what no request could name, before a database is touched.
fn check(name: &str, text: &str) -> Result<(), Failure> {
    if !(1..=255).contains(&text.chars().count()) || text.chars().any(char::is_control) {
        return Err(Failure::Usage(format!(
            "{name} takes 1 to 255 characters, none of them a control character"
        )));
    }
    Ok(())
}

async fn create(
    store: &Store,
    tenant: &str,
    role: ApiRole,
    subject: Option<String>,
) -> Result<ExitCode, Failure> {
    let (key, row) = new_key(&Clock::system(), tenant, role, subject);
    store.insert_api_key(row).await.map_err(Failure::no)?;
    println!("{}", key.reveal());
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &Store) -> Result<ExitCode, Failure> {
    for key in store.api_keys().await.map_err(Failure::no)? {
        println!(
            "{}  {}  {}  {}  made {}{}",
            key.key_id,
            key.tenant_id,
            key.role,
            key.subject.as_deref().unwrap_or("-"),
            key.created_at.format("%Y-%m-%dT%H:%M:%SZ"),
            key.revoked_at
                .map(|at| format!("  revoked {}", at.format("%Y-%m-%dT%H:%M:%SZ")))
                .unwrap_or_default(),
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn revoke(store: &Store, id: Uuid) -> Result<ExitCode, Failure> {
    if store.revoke_api_key(ApiKeyId(id)).await.map_err(Failure::no)? {
        println!("Revoked {id}.");
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::No(format!("no key {id} that could be revoked; see `oncekey key list`")))
    }
}
