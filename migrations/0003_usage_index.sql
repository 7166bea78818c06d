-- Usage is asked for by tenant and time.
create index usage_receipts_by_time on usage_receipts (tenant_id, created_at);
