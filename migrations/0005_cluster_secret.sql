-- What the nodes on this database share and nobody else knows: a node that asks another for the stream
-- of a run proves with it that it is one of them. Made by the first node; deleted, it is made anew by the
-- next node that starts, and nodes with the old one only fall back to waiting for each other's records.
create table cluster_secret (
    one boolean primary key default true check (one),
    secret bytea not null check (octet_length(secret) = 32),
    created_at timestamptz not null default clock_timestamp()
);
