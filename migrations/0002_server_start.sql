-- An orderly restart keeps unlogged tables, and frees every lock all the same. So the epoch is of one
-- start of the server: a row of another start says as little as none.
alter table server_epoch add column server_start timestamptz not null default pg_postmaster_start_time();
