//! Mistakes of a configuration that only the catalogue shows, and the message for each.

pub(super) const SCHEMA: &str = r#"
    create schema "Shop";
    create table "Shop"."Order" ("Id" int primary key, "note.s" text);
    create table parent (id bigint primary key, code text unique, place int);
    create table plain (id bigint, n int);
    create table partial (id bigint);
    create unique index on partial (id) where id > 0;
    create table deferred (id bigint unique deferrable);
    create table expressed (id bigint, name text);
    create unique index on expressed (lower(name));
    create table included (id bigint, n int);
    create unique index on included (n) include (id);
    create table floating (id float8 primary key);
    create table stamped (id timetz primary key);
    create type mood as (glad int, sad int);
    create table moody (id mood primary key);
    create table twice (id bigint primary key, a bigint references parent, b bigint references parent);
    create table child (id bigint primary key, parent_id bigint, label text);
    create table keyless (parent_id bigint references parent);
    create view seen as select * from parent;
    create materialized view stored as select * from parent;
    create index an_index on plain (n);
    create sequence counter;
    create table guarded (id bigint primary key);
    create table pair (x int, y int, primary key (x, y));
    create table doubled (id int primary key, a int, foreign key (a, a) references pair (x, y));
    create table plain_text (id text collate "C" primary key);
    create table mixed (id int primary key, parent_id bigint not null references parent, no int not null,
      label text not null unique, part text not null, score float8, unique (parent_id, no));
    create unique index on mixed (part) where no > 0;
    create unique index on mixed (part collate "C");
    create table upper (id int primary key, label text not null unique);
    create table lower () inherits (upper);
    create table posix_text (id int primary key, text_id text collate "POSIX" references plain_text);
"#;

/// A mistake in one resource, and its message.
pub(super) struct CatalogueMistake {
    /// Below `[[resource]]` and its name; the line in question ends in `# here`.
    pub(super) toml: &'static str,
    /// Below `resource[i].`
    pub(super) key: &'static str,
    /// A part of the message.
    pub(super) message: &'static str,
}

pub(super) const fn case(
    toml: &'static str,
    key: &'static str,
    message: &'static str,
) -> CatalogueMistake {
    CatalogueMistake { toml, key, message }
}

pub(super) const CASES: &[CatalogueMistake] = &[
    case(
        "table = 'parnt' # here",
        "table",
        "no table parnt; did you mean parent?",
    ),
    case(
        "table = 'public.child2' # here",
        "table",
        "did you mean public.child?",
    ),
    // Names are not folded to lower case.
    case(
        "table = 'shop.order' # here",
        "table",
        "did you mean Shop.Order?",
    ),
    case("table = 'Parent' # here", "table", "did you mean parent?"),
    case(
        "table = 'nothing_like_it' # here",
        "table",
        "there is no table",
    ),
    case("table = 'an_index' # here", "table", "there is no table"),
    case("table = 'counter' # here", "table", "there is no table"),
    case("table = 'seen' # here", "table", "is a view"),
    case("table = 'stored' # here", "table", "is a view"),
    case("table = 'plain' # here", "table", "has no primary key"),
    case(
        "table = 'parent'\nkey = 'ident' # here",
        "key",
        "no column ident",
    ),
    case("table = 'plain'\nkey = 'id' # here", "key", "not unique"),
    case(
        "table = 'parent'\nkey = 'place' # here",
        "key",
        "not unique",
    ),
    case("table = 'partial'\nkey = 'id' # here", "key", "not unique"),
    case("table = 'deferred'\nkey = 'id' # here", "key", "not unique"),
    case(
        "table = 'expressed'\nkey = 'name' # here",
        "key",
        "not unique",
    ),
    case("table = 'included'\nkey = 'id' # here", "key", "not unique"),
    case(
        "table = 'floating' # here",
        "table",
        "is of type double precision",
    ),
    case(
        "table = 'stamped'\nkey = 'id' # here",
        "key",
        "is of type time with time zone",
    ),
    case("table = 'moody' # here", "table", "is of type public.mood"),
    case(
        "table = 'parent'\nfields = { id = 'id', plaze = 'p' } # here",
        "fields.plaze",
        "no column plaze in public.parent; did you mean place?",
    ),
    case(
        "table = 'parent'\n[[resource.children]]\nname = 'c'\ntable = 'child' # here",
        "children[0].table",
        "has no foreign key to public.parent",
    ),
    case(
        "table = 'parent'\n[[resource.children]]\nname = 'c'\ntable = 'twice' # here",
        "children[0].table",
        "has several foreign keys to public.parent (a; b): choose",
    ),
    case(
        "table = 'parent'\n[[resource.children]]\nname = 'c'\ntable = 'keyless' # here",
        "children[0].table",
        "has no primary key: say how to sort",
    ),
    case(
        "table = 'parent'\n[[resource.children]]\nname = 'c'\ntable = 'child'\n\
         foreign_key = ['parent_id', 'id'] # here",
        "children[0].foreign_key",
        "2 columns, but the key has 1: id",
    ),
    case(
        "table = 'parent'\n[[resource.children]]\nname = 'c'\ntable = 'child'\nforeign_key = 'label' # here",
        "children[0].foreign_key",
        "too different",
    ),
    case(
        "table = 'parent'\n[[resource.children]]\nname = 'c'\ntable = 'child'\nforeign_key = 'parent' # here",
        "children[0].foreign_key",
        "no column parent in public.child; did you mean parent_id?",
    ),
    case(
        "table = 'parent'\n[[resource.children]]\nname = 'c'\ntable = 'child'\nforeign_key = 'parent_id'\n\
         order_by = ['id', 'lable'] # here",
        "children[0].order_by",
        "no column lable in public.child; did you mean label?",
    ),
    case(
        "table = 'parent'\n[[resource.children]]\nname = 'place' # here\ntable = 'child'\nforeign_key = 'parent_id'",
        "children[0].name",
        "a field of this row is called place already",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'plain'\ncolumn = 'parent_id' # here",
        "lookups[0].column",
        "parent_id of public.child has no foreign key to public.plain: public.plain has no unique key of so many columns",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'parent'\ncolumn = 'parent_id' # here",
        "lookups[0].column",
        "parent_id of public.child has no foreign key to public.parent: if it holds the row's key, say references = \"id\"",
    ),
    case(
        "table = 'doubled'\n[[resource.lookups]]\nname = 'p'\ntable = 'pair'\ncolumn = ['id', 'a'] # here",
        "lookups[0].column",
        "say references = [\"x\", \"y\"]",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'parent'\ncolumn = 'label'\nreferences = 'code' # here",
        "lookups[0].references",
        "column code of public.parent may be null: references names columns that are unique and not null",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'mixed'\ncolumn = 'label'\nreferences = 'part' # here",
        "lookups[0].references",
        "part is not unique in public.mixed",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'parent'\ncolumn = 'parent_id'\nreferences = 'ident' # here",
        "lookups[0].references",
        "no column ident in public.parent",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'pair'\ncolumn = 'id' # here\nreferences = ['x', 'y']",
        "lookups[0].column",
        "2 columns, but the key has 1",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'parent'\ncolumn = 'parent' # here",
        "lookups[0].column",
        "no column parent",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'parent'\ncolumn = 'label' # here\nreferences = 'id'",
        "lookups[0].column",
        "too different",
    ),
    case(
        "table = 'pair'\n[[resource.children]]\nname = 'd'\ntable = 'doubled' # here",
        "children[0].table",
        "names column a twice",
    ),
    case(
        "table = 'plain_text'\n[[resource.children]]\nname = 'p'\ntable = 'posix_text' # here",
        "children[0].table",
        "different collations",
    ),
    case(
        "table = 'child'\n[[resource.lookups]]\nname = 'p'\ntable = 'paren' # here\ncolumn = 'parent_id'",
        "lookups[0].table",
        "did you mean parent?",
    ),
];

/// Mistakes of owners and aliases; the file needs `[auth]`.
pub(super) const ACCESS: &[CatalogueMistake] = &[
    case(
        "table = 'parent'\n[resource.owner]\nclaim = 'sub'\ncolumn = 'plac' # here",
        "owner.column",
        "no column plac in public.parent; did you mean place?",
    ),
    case(
        "table = 'mixed'\n[resource.owner]\nclaim = 'sub'\ncolumn = 'score' # here",
        "owner.column",
        "is of type double precision; owners, as keys, are",
    ),
    case(
        "table = 'mixed'\n[resource.owner]\nclaim = 'sub'\ncolumn = 'parent_id'\n\
         [[resource.lookups]]\nname = 'p'\ntable = 'parent'\ncolumn = 'parent_id'\nowner = 'code' # here",
        "lookups[0].owner",
        "column code of public.parent and the owner of the resource are of types too different",
    ),
    case(
        "table = 'mixed'\n[resource.owner]\nclaim = 'sub'\ncolumn = 'parent_id'\n\
         [[resource.lookups]]\nname = 'p'\ntable = 'parent'\ncolumn = 'parent_id'\nowner = 'cod' # here",
        "lookups[0].owner",
        "no column cod in public.parent; did you mean code?",
    ),
    case(
        "table = 'parent'\n[[resource.by]]\nname = 'a'\ncolumns = 'cod' # here",
        "by[0].columns",
        "no column cod in public.parent; did you mean code?",
    ),
    case(
        "table = 'parent'\n[[resource.by]]\nname = 'a'\ncolumns = 'code' # here",
        "by[0].columns",
        "column code of public.parent may be null",
    ),
    case(
        "table = 'mixed'\n[[resource.by]]\nname = 'a'\ncolumns = 'score' # here",
        "by[0].columns",
        "is of type double precision",
    ),
    case(
        "table = 'mixed'\n[[resource.by]]\nname = 'a'\ncolumns = ['label', 'no'] # here",
        "by[0].columns",
        "has no unique index on exactly label, no",
    ),
    case(
        "table = 'mixed'\n[[resource.by]]\nname = 'a'\ncolumns = 'part' # here",
        "by[0].columns",
        "has no unique index on exactly part: create one; if it is partial, the resource's `where` has to imply its predicate",
    ),
    case(
        "table = 'upper'\n[[resource.by]]\nname = 'a'\ncolumns = 'label' # here",
        "by[0].columns",
        "public.lower inherits from public.upper",
    ),
    case(
        "table = 'mixed'\nwhere = 'no >= 0'\n[[resource.by]]\nname = 'a'\ncolumns = 'part' # here",
        "by[0].columns",
        "`where` has to imply its predicate",
    ),
    case(
        "table = 'mixed'\n[[resource.by]]\nname = 'one'\ncolumns = ['no', 'parent_id']\n\
         [[resource.by]]\nname = 'two'\ncolumns = 'parent_id' # here",
        "by[1].columns",
        "has no unique index on exactly parent_id",
    ),
];

/// A foreign key of periods, and a column that is not null in new rows alone.
pub(super) const SCHEMA_OF_18: &str = "create extension btree_gist;
    create table stay (no int primary key, room int not null, during daterange not null,
      unique (room, during without overlaps));
    create table guest (id int primary key, room int, during daterange,
      foreign key (room, period during) references stay (room, period during));
    create table code (id int primary key, code text unique);
    alter table code add constraint code_there not null code not valid;";

/// Mistakes in it.
pub(super) const OF_18: &[CatalogueMistake] = &[
    case(
        "table = 'stay'\n[[resource.children]]\nname = 'guests'\ntable = 'guest' # here",
        "children[0].table",
        "public.guest has no foreign key to public.stay",
    ),
    case(
        "table = 'code'\n[[resource.by]]\nname = 'code'\ncolumns = 'code' # here",
        "by[0].columns",
        "column code of public.code may be null",
    ),
];

/// Mistakes that need extensions or ICU, which not every server has.
pub(super) const OPTIONAL: &[(&str, &str, CatalogueMistake)] = &[
    (
        "citext",
        "create extension citext; create table folded (id citext primary key)",
        case(
            "table = 'folded' # here",
            "table",
            "is of type public.citext",
        ),
    ),
    (
        "postgres_fdw",
        "create extension postgres_fdw; create server away foreign data wrapper postgres_fdw;
         create foreign table far (id bigint) server away;
         create table split (id bigint) partition by range (id);
         create foreign table split_far partition of split default server away",
        case("table = 'far' # here", "table", "is a foreign table"),
    ),
    (
        "postgres_fdw",
        "",
        case(
            "table = 'split' # here\nkey = 'id'",
            "table",
            "its part public.split_far is a foreign table",
        ),
    ),
    (
        "plpgsql",
        "create collation no_case (provider = icu, locale = 'und', deterministic = false);
         create table loose (id text collate no_case primary key)",
        case(
            "table = 'loose' # here",
            "table",
            "nondeterministic collation",
        ),
    ),
];

pub(super) const GUARDED: &[CatalogueMistake] = &[
    case("table = 'guarded' # here", "table", "has row security"),
    case(
        "table = 'open'\n[[resource.lookups]]\nname = 'g'\ntable = 'guarded' # here\ncolumn = 'guarded_id'",
        "lookups[0].table",
        "row_security = \"as-larder\"",
    ),
];
