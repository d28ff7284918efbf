BEGIN;
CREATE SCHEMA IF NOT EXISTS epochal;
CREATE SEQUENCE IF NOT EXISTS epochal.attempt;
CREATE TABLE IF NOT EXISTS epochal.sinks (
    app text NOT NULL, sink text NOT NULL,
    rows_table oid NOT NULL UNIQUE,       -- two sinks into one table are refused
    generation bigint, token bigint,      -- the fence: who may act
    published bigint NOT NULL DEFAULT 0,  -- the position that readers see
    decision bigint,                      -- the marker: whose epoch stands there
    version int NOT NULL DEFAULT 1,       -- of Epochal's own form of this row and what belongs to it
    PRIMARY KEY (app, sink));
CREATE TABLE IF NOT EXISTS epochal.epochs (
    app text NOT NULL, sink text NOT NULL, position bigint NOT NULL,
    epoch bigint NOT NULL, incarnation text NOT NULL, decision bigint NOT NULL,
    offsets text NOT NULL, row_count bigint NOT NULL, watermark bigint,
    digest_rows bigint, digest_sum bigint,    -- of the rows before select= and where=, in idempotent mode
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (app, sink, position));
CREATE TABLE IF NOT EXISTS epochal.attempts (
    app text NOT NULL, sink text NOT NULL, position bigint NOT NULL, attempt bigint NOT NULL,
    generation bigint NOT NULL, token bigint NOT NULL, row_count bigint NOT NULL,
    PRIMARY KEY (app, sink, position, attempt));
CREATE TABLE "flights__rows" ("id" bigint, "attempt" text, _epoch bigint NOT NULL, _attempt bigint NOT NULL);
CREATE INDEX ON "flights__rows" USING brin (_epoch) WITH (pages_per_range = 32, autosummarize = on);
INSERT INTO epochal.sinks (app, sink, rows_table) VALUES ('flights', 'out', '"flights__rows"'::regclass::oid) ON CONFLICT (app, sink) DO NOTHING;
CREATE VIEW "flights" AS SELECT "id", "attempt" FROM "flights__rows" WHERE (_epoch > (SELECT published FROM epochal.sinks WHERE app = 'flights' AND sink = 'out')) IS FALSE;
COMMIT;
-- left by a start
INSERT INTO "flights__rows" (id, attempt, _epoch, _attempt) VALUES (5, 'a', 6, 1);
UPDATE epochal.sinks SET generation = 1, token = 11, version = 1, published = 6, decision = 60;
INSERT INTO epochal.epochs (app, sink, position, epoch, incarnation, decision, offsets, row_count, watermark,
    digest_rows, digest_sum)
    VALUES ('flights', 'out', 6, 5, 'q1', 60, '[5]', 1, NULL, 1, 9223372036854775807);
