-- What the relay needs of the outbox.

-- The order of a conversation's events. Two of them are never committed at once, since the commit holds the
-- conversation; a sequence, unlike a clock, is never set back.
create sequence outbox_order;
alter table outbox add column ordinal bigint;
update outbox o set ordinal = n.place
from (select tenant_id, id, row_number() over (order by created_at, id) as place from outbox) n
where o.tenant_id = n.tenant_id and o.id = n.id;
select setval('outbox_order', coalesce(max(ordinal), 0) + 1, false) from outbox;
alter table outbox
    alter column ordinal set default nextval('outbox_order'),
    alter column ordinal set not null;
alter sequence outbox_order owned by outbox.ordinal;

alter table outbox
    -- The sinks that acknowledged it: with several, one that is down makes no other get it twice.
    add column acked_by text[] not null default '{}',
    -- The sinks that refused it, and for which next_attempt_at counts.
    add column refusing text[] not null default '{}',
    -- The sinks at which it is a dead letter; counts only with dead_at.
    add column refused_by text[] not null default '{}',
    -- A dead letter that another sink has still to get.
    add column owed boolean not null default false,
    -- Since when a sink that is well refuses it.
    add column refused_at timestamptz;

-- What waits for delivery. An event leaves it when it was published, so it is as short as the backlog.
-- First the share: all events of one aggregate are in one, and a share is one relay's at a time.
create index outbox_waiting on outbox
    (((hashtextextended(tenant_id || chr(31) || aggregateid, 0) & 31)::smallint), ordinal)
    where published_at is null and (dead_at is null or owed);
create index outbox_dead on outbox (id, tenant_id) where dead_at is not null;
create index outbox_published on outbox (published_at) where published_at is not null;

-- Rows that were published leave entries behind at the front of outbox_waiting, which every look passes
-- until they are vacuumed away.
alter table outbox set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Which relays live, and which shares each holds, until when. UNLOGGED: after a crash of the database all
-- shares are free, and whoever asks first has them.
create unlogged table event_relays (
    relay_id uuid primary key,
    held_until timestamptz not null
);
create unlogged table event_shares (
    share smallint primary key check (share between 0 and 31),
    relay_id uuid not null,
    held_until timestamptz not null
) with (fillfactor = 50);
