//! Steps that change rows through a table, one of its ancestors or a view, by all kinds of statements.

use crate::histories::plan::{Form, UNIVERSE, VALUES};
use crate::histories::step::{HistoryStep, Message, StepGenerator, StepTarget};

/// One statement.
pub(super) fn one(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let statement = statement(draw);
    Some(HistoryStep::sql("rows", statement))
}

/// Several statements in a transaction, some of them rolled back.
pub(super) fn transaction(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let mut sql = String::from("begin; ");
    for _ in 0..2 + draw.rng.usize(..3) {
        let kept = statement(draw);
        sql.push_str(&format!("{kept}; "));
        if draw.once_in(3) {
            let (back, release) = (statement(draw), draw.once_in(3));
            let end = if release {
                "release s"
            } else {
                "rollback to s"
            };
            sql.push_str(&format!("savepoint s; {back}; {end}; "));
        }
    }
    let end = if draw.once_in(6) {
        "rollback"
    } else {
        "commit"
    };
    Some(HistoryStep::sql("transaction", sql + end))
}

pub(super) fn copy(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    // A view without a trigger accepts no such statement.
    let target = draw.target(prefix).replace("_v", "");
    let mut lines = String::new();
    for _ in 0..1 + draw.rng.usize(..4) {
        let (id, part) = (draw.fresh_id(prefix), part(draw));
        lines.push_str(&format!("{id}\t{part}\tcopied{}\n", draw.number));
    }
    let sql = format!("copy {target} (id, part, label) from stdin");
    Some(HistoryStep::new("copy", vec![Message::Copy(sql, lines)]))
}

pub(super) fn truncate(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let target = draw.target(prefix);
    let only = if draw.once_in(4) { "only " } else { "" };
    let cascade = if draw.once_in(2) { " cascade" } else { "" };
    Some(HistoryStep::sql(
        "truncate",
        format!("truncate {only}{target}{cascade}"),
    ))
}

/// All rows go and come back in one transaction, so that no key is ever absent.
pub(super) fn refill(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let target = draw
        .tables(prefix)
        .iter()
        .find(|table| table.parents.is_empty())?
        .name
        .clone();
    if draw.plan.family(prefix)?.form == Form::Inherited {
        return None;
    }
    let gone = if draw.once_in(2) {
        format!("truncate {target}")
    } else {
        format!("delete from {target}")
    };
    Some(HistoryStep::sql(
        "refill",
        format!(
            "begin; create temp table kept on commit drop as table {target}; {gone}; \
             update kept set label = 'again{}'; insert into {target} table kept; commit",
            draw.number
        ),
    ))
}

/// As logical replication, and tools that load dumps, do it.
pub(super) fn replica_role(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let sql = format!(
        "begin; set local session_replication_role = replica; {}; {}; commit",
        statement(draw),
        statement(draw)
    );
    Some(HistoryStep::sql("replica role", sql))
}

/// With all triggers of a table off, in one transaction or in three.
pub(super) fn untriggered(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let target = draw.target(prefix).replace("_v", "");
    let which = if draw.once_in(2) { "all" } else { "user" };
    let parts = [
        format!("alter table {target} disable trigger {which}"),
        statement(draw),
        format!("alter table {target} enable trigger {which}"),
    ];
    let messages = if draw.once_in(2) {
        vec![Message::Sql(format!("begin; {}; commit", parts.join("; ")))]
    } else {
        parts.map(Message::Sql).to_vec()
    };
    Some(HistoryStep::new("untriggered", messages))
}

/// A temporary table hides one of the resource's own, and takes the writes.
pub(super) fn temporary(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let target = draw.target(prefix).replace("_v", "");
    let below = part(draw);
    let sql = format!(
        "begin; set local search_path = pg_temp, public; create temp table {target} (like public.{target}) on commit drop; \
         insert into {target} table public.{target}; update {target} set label = 'temporary'; \
         update public.{target} set label = 'beside{}' where part < {below}; commit",
        draw.number
    );
    Some(HistoryStep::sql("temporary", sql))
}

/// Deletes rows of the change log while it has some.
pub(super) fn log(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let statement = update(draw);
    let mut step = HistoryStep::new(
        "log",
        vec![
            Message::Sql(statement),
            // Under a publication of all tables PostgreSQL refuses to delete from a table without a replica identity.
            Message::Sql(
                "do $$ begin delete from larder.change; \
                 exception when object_not_in_prerequisite_state then null; end $$"
                    .to_owned(),
            ),
        ],
    );
    step.place = StepTarget::BesideLarder;
    step.while_down = draw.once_in(2);
    Some(step)
}

/// larder does not run while rows change.
pub(super) fn restart(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let mut step = transaction(draw)?;
    step.kind = "restart";
    step.while_down = true;
    Some(step)
}

/// A value of the partitioning column, if it is not the key.
pub(super) fn part(draw: &mut StepGenerator<'_>) -> usize {
    draw.rng.usize(..UNIVERSE)
}

/// A condition that chooses rows.
fn filter(draw: &mut StepGenerator<'_>, prefix: char) -> String {
    match draw.rng.usize(..8) {
        0 => "true".to_owned(),
        1 | 2 => {
            let from = part(draw);
            format!("part between {from} and {}", from + 10)
        }
        _ => {
            let ids: Vec<String> = (0..1 + draw.rng.usize(..3))
                .filter_map(|_| draw.known_id(prefix))
                .collect();
            if ids.is_empty() {
                "true".to_owned()
            } else {
                format!("id in ('{}')", ids.join("', '"))
            }
        }
    }
}

/// A statement that changes rows of any family by any table.
pub(super) fn statement(draw: &mut StepGenerator<'_>) -> String {
    let prefix = draw.family().prefix;
    let target = draw.target(prefix);
    match draw.rng.usize(..16) {
        0..4 => insert(draw, prefix, &target),
        4..6 => link(draw, prefix, &target),
        6..8 => rekey(draw, prefix, &target),
        8 => {
            let (part, filter) = (part(draw), filter(draw, prefix));
            format!("update {target} set part = {part} where {filter}")
        }
        9..11 => {
            let filter = filter(draw, prefix);
            format!(
                "delete from {target} where {filter} and part < {}",
                part(draw)
            )
        }
        11 => upsert(draw, prefix, &target),
        12 => merge(draw, prefix, &target),
        13 => both(draw, prefix, &target),
        _ => update(draw),
    }
}

fn update(draw: &mut StepGenerator<'_>) -> String {
    let prefix = draw.family().prefix;
    let target = draw.target(prefix);
    let filter = filter(draw, prefix);
    let number = draw.number;
    let columns = draw
        .plan
        .family(prefix)
        .map(|family| family.columns.clone())
        .unwrap_or_default();
    let of_type = columns
        .iter()
        .find(|(name, _)| *name == "v")
        .map(|(_, of_type)| of_type.as_str());
    let values = VALUES.iter().find(|(name, _)| Some(*name) == of_type);
    match values {
        Some((_, values)) if draw.once_in(3) => {
            let value = draw.one_of(values).unwrap_or(&"null");
            format!("update {target} set v = {value} where {filter}")
        }
        _ => format!("update {target} set label = label || '{number}' where {filter}"),
    }
}

pub(super) fn insert(draw: &mut StepGenerator<'_>, prefix: char, target: &str) -> String {
    let extra = match prefix {
        'l' => "",
        _ if target.ends_with("_v") => "",
        'c' => ", ref, up",
        _ => ", ref",
    };
    let mut values = Vec::new();
    for _ in 0..1 + draw.rng.usize(..3) {
        let (id, part) = (draw.fresh_id(prefix), part(draw));
        let mut row = format!("'{id}', {part}, 'new{}'", draw.number);
        if extra.contains("ref") {
            row.push_str(&format!(", {}", reference(draw)));
        }
        if extra.contains("up") {
            row.push_str(&format!(", {}", upper(draw)));
        }
        values.push(format!("({row})"));
    }
    let sql = format!(
        "insert into {target} (id, part, label{extra}) values {}",
        values.join(", ")
    );
    let composite = prefix == 'c'
        && draw
            .plan
            .family('r')
            .is_some_and(|roots| roots.form == Form::Partitioned);
    if composite && !extra.is_empty() {
        format!(
            "{sql}; update {target} c set up_part = r.part from r0 r where r.id = c.up and c.up_part is null"
        )
    } else {
        sql
    }
}

/// The key of a row that is looked up, or of none.
pub(super) fn reference(draw: &mut StepGenerator<'_>) -> String {
    match draw.known_id('l') {
        Some(id) if !draw.once_in(6) => format!("'{id}'"),
        _ => "null".to_owned(),
    }
}

/// The key of a root, or of none.
pub(super) fn upper(draw: &mut StepGenerator<'_>) -> String {
    match draw.known_id('r') {
        Some(id) if !draw.once_in(10) => format!("'{id}'"),
        _ => "null".to_owned(),
    }
}

/// Points rows to others above or beside them.
fn link(draw: &mut StepGenerator<'_>, prefix: char, target: &str) -> String {
    let target = target.replace("_v", "");
    let filter = filter(draw, prefix);
    if prefix == 'c' && draw.once_in(2) {
        let composite = draw
            .plan
            .family('r')
            .is_some_and(|roots| roots.form == Form::Partitioned);
        let upper = upper(draw);
        return if composite {
            format!(
                "update {target} set up = {upper}, up_part = (select part from r0 where id = {upper}) where {filter}"
            )
        } else {
            format!("update {target} set up = {upper} where {filter}")
        };
    }
    let reference = reference(draw);
    format!("update {target} set ref = {reference} where {filter}")
}

fn rekey(draw: &mut StepGenerator<'_>, prefix: char, target: &str) -> String {
    let (fresh, known) = (draw.fresh_id(prefix), draw.known_id(prefix));
    format!(
        "update {target} set id = '{fresh}' where id = '{}'",
        known.unwrap_or(fresh.clone())
    )
}

/// A conflict is seen in the named table alone, so the row comes from there if the tables inherit.
fn upsert(draw: &mut StepGenerator<'_>, prefix: char, target: &str) -> String {
    let target = target.replace("_v", "");
    let form = draw.plan.family(prefix).map(|family| family.form);
    let only = match form {
        Some(Form::Inherited | Form::Plain) => "only ",
        _ => "",
    };
    let key = if form == Some(Form::Partitioned) {
        "id, part"
    } else {
        "id"
    };
    format!(
        "insert into {target} (id, part, label) select id, part, label from {only}{target} order by id limit 2 \
         on conflict ({key}) do update set label = excluded.label || '#{}'",
        draw.number
    )
}

fn merge(draw: &mut StepGenerator<'_>, prefix: char, target: &str) -> String {
    let target = target.replace("_v", "");
    let (known, fresh, part) = (draw.known_id(prefix), draw.fresh_id(prefix), part(draw));
    let matched = match draw.rng.usize(..3) {
        0 => "delete".to_owned(),
        1 => format!("update set label = 'merged{}'", draw.number),
        _ => format!("update set part = {part}"),
    };
    format!(
        "merge into {target} t using {prefix}0 s on t.id = s.id and s.id = '{}' when matched then {matched}; \
         merge into {target} t using (select 1) s on t.id = '{fresh}' \
         when not matched then insert (id, part, label) values ('{fresh}', {part}, 'merged')",
        known.unwrap_or(fresh.clone())
    )
}

/// Two tables in one statement: a row that moves from one to the other, or a change of another family beside.
fn both(draw: &mut StepGenerator<'_>, prefix: char, target: &str) -> String {
    let target = target.replace("_v", "");
    let filter = filter(draw, prefix);
    let other = draw.target(prefix).replace("_v", "");
    if draw.once_in(2) {
        return format!(
            "with gone as (delete from {target} where {filter} returning id, part, label) \
             insert into {other} (id, part, label) select id, part, label || '>' from gone"
        );
    }
    let beside = draw.family().prefix;
    let beside = draw.target(beside);
    format!(
        "with one as (update {target} set label = 'one{number}' where {filter} returning part) \
         update {beside} set label = 'two{number}' where part in (select part from one)",
        number = draw.number
    )
}
