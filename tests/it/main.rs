//! One binary for what needs a database or a running server, a file per promise.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test ends where it cannot go on, owns its tasks and plays the client and the system"
)]

mod access;
mod audit;
mod audit_command;
mod bad_input;
mod bench;
mod broken_variants;
mod busy_conversations;
mod cancelling;
mod claims;
mod client_commands;
mod client_retries;
mod client_streams;
mod clients_in_other_languages;
mod clocks;
mod coalescing;
mod coalescing_trouble;
mod commit_conflicts;
mod crashes;
mod database_down;
mod database_roles;
mod derived_keys;
mod disconnects;
mod documents;
mod documents_hostile;
mod draining;
mod erase_subject;
mod event_retention;
mod failover;
mod fault_variables;
mod finance_prices;
mod finance_views;
mod first_minute;
mod frozen;
mod half_detached;
mod heartbeats;
mod injected_faults;
mod keeper;
mod keeper_metrics;
mod keys;
mod log_lines;
mod lost_answers;
mod main_job;
mod midnight;
mod minted_keys;
mod missing_partitions;
mod node_lock;
mod node_locks;
mod odd_paths_and_answers;
mod old_keys;
mod old_partitions;
mod one_outcome;
mod openapi;
mod outbox_columns;
mod panics;
mod parse_answers;
mod parse_failures;
mod parse_golden;
mod parse_money;
mod parse_requests;
mod parse_runs;
mod partition_command;
mod partitions_under_load;
mod passing_failures;
mod pgbouncer;
mod plans;
mod pool_recovers;
mod postgres_private;
mod provider_connection;
mod provider_deadlines;
mod provider_tools;
mod provider_wire;
mod races;
mod reconcile;
mod relay_crashes;
mod relay_delivers;
mod relay_down;
mod relay_nats;
mod relay_order;
mod relay_poison;
mod replays;
mod retention;
mod retry_changes;
mod retry_memory;
mod retry_waits;
mod small_pool;
mod streams_attach;
mod streams_broken;
mod streams_draining;
mod streams_frozen;
mod streams_nodes;
mod streams_order;
mod streams_slow;
mod support;
mod taking_away_killed;
mod traces;
mod usage;
mod waiting;
