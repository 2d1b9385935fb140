//! The documents of `larder.toml`, described again for the oracle.

use crate::documents::oracle::{DocumentedResource, Shape, TableColumns};
use crate::documents::rendering::ColumnKind::{
    self, Array, Bool, Bytea, Composite, Embedded, Inet, Number, Padded, Text, Timestamp, Zoned,
};

static COUNTRY: TableColumns = TableColumns {
    sql: r#""Sales".country"#,
    columns: &[("code", Padded(5)), ("title", Text), ("continent", Text)],
};
static REGION: TableColumns = TableColumns {
    sql: r#""Sales".region"#,
    columns: &[("id", Number), ("title", Text), ("country", Padded(5))],
};
static AUTHOR: TableColumns = TableColumns {
    sql: r#""Sales".author"#,
    columns: &[("id", Number), ("name", Text), ("born", Text)],
};
static PRODUCT: TableColumns = TableColumns {
    sql: r#""Sales".product"#,
    columns: &[
        ("id", Text),
        ("title", Text),
        ("price", Number),
        ("parent", Text),
    ],
};
static ORDERS: TableColumns = TableColumns {
    sql: r#""Sales"."Orders""#,
    columns: &[
        ("orderNo", Number),
        ("Branch", Text),
        ("title", Text),
        ("ref", Text),
        ("region_id", Number),
        ("up_no", Number),
        ("up,Branch", Text),
    ],
};
static LINE: TableColumns = TableColumns {
    sql: r#""Sales"."Line""#,
    columns: &[
        ("id", Number),
        ("qty", Number),
        ("product_id", Text),
        ("inBranch", Text),
        ("inOrder", Number),
    ],
};
static NOTE: TableColumns = TableColumns {
    sql: r#""Sales".note"#,
    columns: &[
        ("id", Number),
        ("body", Text),
        ("author", Number),
        ("line_id", Number),
    ],
};
static TAG: TableColumns = TableColumns {
    sql: r#""Sales".tag"#,
    columns: &[("note_id", Number), ("tag", Text), ("weight", Number)],
};
static SHIPMENT: TableColumns = TableColumns {
    sql: r#""Sales".shipment"#,
    columns: &[("id", Number), ("order_ref", Text), ("sent", Zoned)],
};
static ACCOUNT: TableColumns = TableColumns {
    sql: r#""Sales".account"#,
    columns: &[("no", Number), ("owner", Text)],
};
static ENTRY: TableColumns = TableColumns {
    sql: r#""Sales".entry"#,
    columns: &[("id", Number), ("account", Number), ("sum", Number)],
};
static PERSON: TableColumns = TableColumns {
    sql: r#""Sales".person"#,
    columns: &[("name", Text), ("visits", Number), ("friend", Text)],
};
static DAY: TableColumns = TableColumns {
    sql: r#""Sales".day"#,
    columns: &[("day", Text), ("holiday", Bool)],
};
static EVENT: TableColumns = TableColumns {
    sql: r#""Sales".event"#,
    columns: &[("id", Number), ("day", Text), ("at", Text)],
};
static METER: TableColumns = TableColumns {
    sql: r#""Sales".meter"#,
    columns: &[("zone", Text), ("id", Number), ("label", Text)],
};
static SAMPLE: TableColumns = TableColumns {
    sql: r#""Sales".sample"#,
    columns: &[
        ("id", Number),
        ("day", Text),
        ("zone", Text),
        ("meter", Number),
        ("value", Number),
    ],
};
static GARAGE: TableColumns = TableColumns {
    sql: r#""Sales".garage"#,
    columns: &[("id", Number), ("name", Text)],
};
static VEHICLE: TableColumns = TableColumns {
    sql: r#""Sales".vehicle"#,
    columns: &[("id", Number), ("garage_id", Number), ("name", Text)],
};
static ADDRESS: ColumnKind = Composite(&[("street", Text), ("No", Number), ("ok", Bool)]);
static KIND: TableColumns = TableColumns {
    sql: r#""Sales".kind"#,
    columns: &[
        ("id", Number),
        ("i2", Number),
        ("i8", Number),
        ("n", Number),
        ("n4", Number),
        ("f4", Number),
        ("f8", Number),
        ("b", Bool),
        ("t", Text),
        ("v", Text),
        ("c", Padded(5)),
        ("bin", Bytea),
        ("d", Text),
        ("tm", Text),
        ("tmz", Text),
        ("ts", Timestamp),
        ("tsz", Zoned),
        ("iv", Text),
        ("u", Text),
        ("j", Embedded),
        ("jb", Embedded),
        ("e", Text),
        ("dts", Timestamp),
        ("dbin", Bytea),
        ("dnum", Number),
        ("dj", Embedded),
        ("ai", Array(&Number)),
        ("at", Array(&Text)),
        ("ats", Array(&Timestamp)),
        ("atsz", Array(&Zoned)),
        ("abin", Array(&Bytea)),
        ("an", Array(&Number)),
        ("ab", Array(&Bool)),
        ("aj", Array(&Embedded)),
        ("adts", Array(&Timestamp)),
        ("adbin", Array(&Bytea)),
        ("ae", Array(&Text)),
        ("place", ADDRESS),
        ("places", Array(&ADDRESS)),
        ("r", Text),
        ("tr", Text),
        ("ip", Inet),
        ("odd \"name\", é", Text),
    ],
};

fn orders() -> DocumentedResource {
    let author = Shape::whole(&AUTHOR);
    let notes = Shape::of(&NOTE, &[("body", "body")])
        .children(
            "tags",
            &[("note_id", "id")],
            "note_id, tag",
            Shape::whole(&TAG),
        )
        .lookup("author", &[("id", "author")], author);
    let product = Shape::of(&PRODUCT, &[("title", "title"), ("price", "price")]);
    let lines = Shape::of(&LINE, &[("qty", "qty"), ("id", "id")])
        .children("notes", &[("line_id", "id")], "body, id", notes)
        .lookup("product", &[("id", "product_id")], product);
    let region = Shape::of(&REGION, &[("title", "title")]).lookup(
        "country",
        &[("code", "country")],
        Shape::whole(&COUNTRY),
    );
    let shape = Shape::of(
        &ORDERS,
        &[
            ("title", "t i t l e"),
            ("Branch", "branch"),
            ("orderNo", "no"),
            ("ref", "ref"),
        ],
    )
    .children(
        "lines",
        &[("inOrder", "orderNo"), ("inBranch", "Branch")],
        "id",
        lines,
    )
    .children(
        "shipments",
        &[("order_ref", "ref")],
        "sent, id",
        Shape::of(&SHIPMENT, &[("sent", "sent"), ("id", "id")]),
    )
    .children(
        "parts",
        &[("up_no", "orderNo"), ("up,Branch", "Branch")],
        "\"orderNo\", \"Branch\"",
        Shape::of(&ORDERS, &[("orderNo", "no"), ("Branch", "branch")]),
    )
    .lookup("region", &[("id", "region_id")], region)
    .lookup(
        "whole",
        &[("orderNo", "up_no"), ("Branch", "up,Branch")],
        Shape::of(&ORDERS, &[("title", "title"), ("orderNo", "no")]),
    );
    let key = &["orderNo", "Branch"];
    DocumentedResource {
        name: "orders",
        key,
        shape,
    }
}

fn products() -> DocumentedResource {
    let notes = Shape::of(&NOTE, &[("body", "body")]);
    let lines = Shape::of(&LINE, &[("id", "id"), ("qty", "qty")]).children(
        "notes",
        &[("line_id", "id")],
        "id",
        notes,
    );
    let variants = Shape::of(&PRODUCT, &[("title", "title")]);
    let shape = Shape::whole(&PRODUCT)
        .children("variants", &[("parent", "id")], "id", variants)
        .children("lines", &[("product_id", "id")], "id", lines);
    DocumentedResource {
        name: "products",
        key: &["id"],
        shape,
    }
}

fn countries() -> DocumentedResource {
    let lines = Shape::of(&LINE, &[("qty", "qty")]);
    let orders = Shape::of(&ORDERS, &[("title", "title")]).children(
        "lines",
        &[("inOrder", "orderNo"), ("inBranch", "Branch")],
        "id",
        lines,
    );
    let regions = Shape::of(&REGION, &[("id", "id"), ("title", "title")]).children(
        "orders",
        &[("region_id", "id")],
        "\"orderNo\", \"Branch\"",
        orders,
    );
    let shape = Shape::whole(&COUNTRY).children("regions", &[("country", "code")], "id", regions);
    DocumentedResource {
        name: "countries",
        key: &["code"],
        shape,
    }
}

fn with_children(
    name: &'static str,
    key: &'static [&'static str],
    root: &'static TableColumns,
    (member, on, order): (&'static str, &[(&'static str, &'static str)], &'static str),
    below: Shape,
) -> DocumentedResource {
    let shape = Shape::whole(root).children(member, on, order, below);
    DocumentedResource { name, key, shape }
}

/// The resource of people, which every larder of these tests has.
pub(crate) fn people() -> DocumentedResource {
    let ally = Shape::of(&PERSON, &[("visits", "visits")]);
    let shape = Shape::whole(&PERSON).lookup("ally", &[("name", "friend")], ally);
    DocumentedResource {
        name: "people",
        key: &["name"],
        shape,
    }
}

/// Countries alone, under the name of orders.
pub(crate) fn countries_called_orders() -> DocumentedResource {
    DocumentedResource {
        name: "orders",
        key: &["code"],
        shape: Shape::whole(&COUNTRY).children(
            "regions",
            &[("country", "code")],
            "id",
            Shape::whole(&REGION),
        ),
    }
}

/// All of `larder.toml`.
pub(crate) fn documented() -> Vec<DocumentedResource> {
    let titles = Shape::of(&ORDERS, &[("title", "title")]);
    let bodies = Shape::of(&NOTE, &[("body", "body")]);
    let sums = Shape::of(&ENTRY, &[("sum", "sum")]);
    let events = Shape::of(&EVENT, &[("at", "at"), ("day", "on")]);
    let samples = Shape::of(&SAMPLE, &[("day", "day"), ("value", "value")]);
    let vehicles = Shape::of(&VEHICLE, &[("id", "id"), ("name", "name")]);
    let meter_key: &[_] = &[("zone", "zone"), ("meter", "id")];
    let by_order = "\"orderNo\", \"Branch\"";
    vec![
        orders(),
        products(),
        with_children(
            "regions",
            &["id"],
            &REGION,
            ("orders", &[("region_id", "id")], by_order),
            titles,
        ),
        countries(),
        with_children(
            "authors",
            &["id"],
            &AUTHOR,
            ("notes", &[("author", "id")], "id"),
            bodies,
        ),
        with_children(
            "accounts",
            &["no"],
            &ACCOUNT,
            ("entries", &[("account", "no")], "id"),
            sums,
        ),
        people(),
        with_children(
            "days",
            &["day"],
            &DAY,
            ("events", &[("day", "day")], "id"),
            events,
        ),
        with_children(
            "meters",
            &["zone", "id"],
            &METER,
            ("samples", meter_key, "day, id"),
            samples,
        ),
        with_children(
            "garages",
            &["id"],
            &GARAGE,
            ("vehicles", &[("garage_id", "id")], "id"),
            vehicles,
        ),
        DocumentedResource {
            name: "kinds",
            key: &["id"],
            shape: Shape::whole(&KIND),
        },
    ]
}
