-- Watches every step of every record, which its state alone does not tell afterwards: who was taken
-- over while alive, what was ended that was over, which key was claimed anew beside its record.
create table sim_rules (stale_after interval not null, grace interval not null, calm boolean not null);
create table sim_wrong (at timestamptz not null default clock_timestamp(), what text not null);
create table sim_births (tenant_id text, idempotency_key uuid, operation_id uuid);
-- Which start of which node won a claim; it says so with every connection that it makes.
create table sim_claims (request_id uuid primary key, node text);

create function sim_complain(what text, old_row request_records, new_row request_records)
returns void language sql as $$
    insert into sim_wrong (what) values (format('%s: %s/%s was %s %s %s, is %s %s %s %s', what,
        new_row.tenant_id, new_row.idempotency_key, old_row.state, old_row.fence, old_row.heartbeat_at,
        new_row.state, new_row.fence, new_row.failure_kind, new_row.owner))
$$;

-- What the product calls a run without a live owner, in words of its own.
create function sim_unowned(run request_records) returns boolean language sql volatile as $$
    select exists (select from nodes where node_id = run.owner and dead_at is not null)
        or exists (select from server_epoch, sim_rules
            where server_start = pg_postmaster_start_time()
                and first_seen <= clock_timestamp() - grace
                and (clock_timestamp() - run.heartbeat_at > stale_after
                    or not exists (select from nodes where node_id = run.owner)))
$$;

create function sim_watch_birth() returns trigger language plpgsql as $$
declare
    nobody request_records;
begin
    insert into sim_births values (new.tenant_id, new.idempotency_key, new.operation_id);
    insert into sim_claims values (new.request_id, current_setting('sim.node', true));
    if new.state <> 'in_progress' or new.fence <> 1 then
        perform sim_complain('born wrong', nobody, new);
    end if;
    if exists (select from request_records r where r.tenant_id = new.tenant_id
            and r.idempotency_key = new.idempotency_key and r.day <> new.day) then
        perform sim_complain('claimed anew beside its record', nobody, new);
    end if;
    return null;
end $$;

create function sim_watch_step() returns trigger language plpgsql as $$
declare
    same_run boolean := old.fence = new.fence and old.request_id = new.request_id;
    next_run boolean := new.fence = old.fence + 1 and old.request_id <> new.request_id;
    was text := case when old.state = 'failed' and old.failure_final then 'over'
        when old.state = 'failed' then 'passing' when old.state = 'committed' then 'over'
        else old.state end;
    -- Anybody may end a run that nobody owns, and cancel one.
    ends_own boolean := new.state = 'committed'
        or new.failure_kind not in ('abandoned', 'gave_up', 'cancelled');
begin
    if new.state = 'in_progress' and next_run then
        insert into sim_claims values (new.request_id, current_setting('sim.node', true));
    end if;
    if was = 'over' then
        if new.state <> old.state or not same_run or new.erased_at is null
            or new.response is not null then
            perform sim_complain('changed when it was over', old, new);
        end if;
    elsif was = 'passing' then
        if not ((new.state = 'in_progress' and next_run)
            or (new.state = 'failed' and same_run and new.failure_kind = 'gave_up')) then
            perform sim_complain('no step from a passing failure', old, new);
        end if;
    elsif new.state = 'in_progress' then
        if not next_run or not sim_unowned(old) then
            perform sim_complain('taken over', old, new);
        end if;
    elsif not same_run then
        perform sim_complain('ended by another run', old, new);
    elsif new.failure_kind in ('abandoned', 'gave_up') and not sim_unowned(old) then
        perform sim_complain('ended while it lived', old, new);
    elsif ends_own and current_setting('sim.node', true) is distinct from
            (select node from sim_claims where request_id = old.request_id) then
        perform sim_complain('ended by a node that does not run it', old, new);
    end if;
    return null;
end $$;

create function sim_watch_lease() returns trigger language plpgsql as $$
begin
    if (new.active_key is null or (select calm from sim_rules))
        and exists (select from request_keys k join request_records r using (tenant_id, idempotency_key, day)
            where k.tenant_id = old.tenant_id and k.idempotency_key = old.active_key
                and r.state = 'in_progress' and r.conversation_id = old.conversation_id) then
        insert into sim_wrong (what) values (format('%s/%s lost its holder %s to %s', old.tenant_id,
            old.conversation_id, old.active_key, coalesce(new.active_key::text, 'nobody')));
    end if;
    return null;
end $$;

create trigger sim_birth after insert on request_records
    for each row execute function sim_watch_birth();
create trigger sim_step after update on request_records for each row
    when ((old.state, old.fence, old.request_id, old.response, old.failure_final)
        is distinct from (new.state, new.fence, new.request_id, new.response, new.failure_final))
    execute function sim_watch_step();
create trigger sim_lease after update on conversations for each row
    when (old.active_key is not null and old.active_key is distinct from new.active_key)
    execute function sim_watch_lease();
