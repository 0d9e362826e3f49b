-- What a database of schema version 1 held.
PRAGMA application_id = 1416588396;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
CREATE TABLE migration (
                        version    INTEGER PRIMARY KEY,
                        checksum   INTEGER NOT NULL,
                        applied_ns INTEGER NOT NULL
                    ) STRICT;
INSERT INTO migration VALUES (1, 6035242367202163837, 1);
CREATE TABLE source (
         epoch       INTEGER PRIMARY KEY,
         started_ns  INTEGER NOT NULL,
         sealed_ns   INTEGER,
         applied_lsn INTEGER NOT NULL
     ) STRICT;
CREATE TABLE flow (
         id          BLOB    NOT NULL,
         opened_ns   INTEGER NOT NULL,
         closed_ns   INTEGER NOT NULL,
         user        TEXT    NOT NULL,
         host        TEXT    NOT NULL,
         port        INTEGER NOT NULL,
         address     TEXT,
         client      TEXT    NOT NULL,
         class       TEXT    NOT NULL,
         protocol    TEXT    NOT NULL,
         rule        TEXT    NOT NULL,
         reason      TEXT    NOT NULL,
         cut         INTEGER NOT NULL,
         client_rx   INTEGER NOT NULL,
         upstream_tx INTEGER NOT NULL,
         upstream_rx INTEGER NOT NULL,
         client_tx   INTEGER NOT NULL,
         up          INTEGER NOT NULL GENERATED ALWAYS AS (upstream_tx) VIRTUAL,
         down        INTEGER NOT NULL GENERATED ALWAYS AS (client_tx) VIRTUAL
     ) STRICT;
INSERT INTO source VALUES (1, 1, 2, 2), (2, 3, NULL, 1);
INSERT INTO flow VALUES
    (x'00000000000000000000000000000001', 1769903999000000000, 1769903999000000000, 'ci', 'github.com', 443,
     NULL, '192.0.2.1:40000', 'external', 'socks5', '', 'client_closed', 0, 1, 1, 10, 10),
    (x'00000000000000000000000000000002', 1769903999000000000, 1769904000000000000, 'ann', 'db.corp', 5432,
     '10.20.0.7', '192.0.2.1:40001', 'internal', 'forward', '@corp[1]', 'drained', 0, 4, 4, 20, 20),
    (x'00000000000000000000000000000003', 1769903999000000000, 1769903999999999999, 'ci', 'github.com', 443,
     NULL, '192.0.2.1:40002', 'external', 'socks5', '', 'client_closed', 0, 2, 2, 20, 20);
