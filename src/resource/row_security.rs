//! What row security lets larder's role see, and SQL that PostgreSQL refuses if that has changed.
//!
//! PostgreSQL adds policies to a statement when it analyses it. Older minor versions keep the analysis even if the role
//! has got the attribute to bypass policies since, or has lost a role that a policy names. A change of a membership or
//! an attribute that is undone leaves no trace. So each statement contains the state in which it may be analysed and
//! run:
//!
//! - *Analysed.* PostgreSQL converts constants in the step that adds policies to the statement. The tables are locked
//!   by then, and what it has read about roles is cached. A constant of type `larder.row_security_state[]` calls the
//!   check of that domain, which computes the state and compares it. The check costs nothing after the analysis, and
//!   runs again if PostgreSQL discards the analysis. A function would be too late: an immutable one is called when the
//!   statement is planned, which for a prepared statement is a round trip later.
//! - *Run.* A condition on attributes and memberships of the role is evaluated once for each execution.

use std::collections::BTreeMap;

/// SQL for the state of the table `c` (of `pg_class`) in the form of the domain `larder.row_security_state`: the oid,
/// `on` and the policies that determine what larder's role reads, or the oid and `off` if row security does not apply
/// to the role.
///
/// `larder.row_security()` in `migrations/larder.sql` computes the same text.
pub(crate) const STATE_SQL: &str = "\
    concat_ws(' ', c.oid, case when not row_security_active(c.oid) then 'off' else concat_ws(' ', 'on', ( \
      select string_agg(p.oid::text, ' ' order by p.oid) from pg_policy p \
      where p.polrelid = c.oid and p.polcmd in ('r', '*') and exists (select from unnest(p.polroles) r (oid) \
        where case when r.oid = 0 then true else pg_has_role(r.oid, 'usage') end))) end)";

/// The name of the domain's constraint. PostgreSQL's error has it if the state has changed.
pub(crate) const UNCHANGED: &str = "larder_row_security_unchanged";

/// What row security lets larder's role see of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRowSecurity {
    /// The result of [`STATE_SQL`].
    state: String,
    /// SQL conditions on attributes and memberships of the role, which are true in this state.
    conditions: Vec<String>,
}

impl TableRowSecurity {
    /// The row security of the table `oid`, whose `state` is the result of [`STATE_SQL`].
    pub(crate) fn new(oid: u32, state: String) -> Self {
        let mut this = Self {
            state,
            conditions: Vec::new(),
        };
        let is_active = this.is_active();
        this.conditions
            .push(format!("row_security_active({oid}::oid) = {is_active}"));
        this
    }

    /// Whether it applies to larder's role.
    pub(crate) fn is_active(&self) -> bool {
        !self.state.ends_with(" off")
    }

    /// Whether the policy determines what larder's role reads.
    pub(crate) fn applies(&self, policy: u32) -> bool {
        let policy = policy.to_string();
        self.is_active() && self.state.split(' ').skip(2).any(|known| known == policy)
    }

    /// Adds a policy for `roles`. Whether larder's role has one of these roles is part of the state.
    pub(crate) fn add_policy(&mut self, policy: u32, roles: &[i64]) {
        // 0 stands for every role.
        if roles.contains(&0) {
            return;
        }
        let has = |role: &i64| format!("pg_has_role({role}::oid, 'usage')");
        let has: Vec<String> = roles.iter().map(has).collect();
        let applies = self.applies(policy);
        self.conditions
            .push(format!("({}) = {applies}", has.join(" or ")));
    }
}

/// What row security lets larder's role see of tables, by their oids; at least of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSecurity(BTreeMap<u32, TableRowSecurity>);

impl RowSecurity {
    /// The row security of tables, by their oids; `None` without tables.
    pub(crate) fn of(tables: impl IntoIterator<Item = (u32, TableRowSecurity)>) -> Option<Self> {
        let tables: BTreeMap<_, _> = tables.into_iter().collect();
        (!tables.is_empty()).then_some(Self(tables))
    }

    /// The row security of the tables of all `parts`; `None` without tables.
    pub(crate) fn union<'p>(parts: impl IntoIterator<Item = &'p Self>) -> Option<Self> {
        let tables = parts.into_iter().flat_map(|part| part.0.clone());
        let tables: BTreeMap<_, _> = tables.collect();
        (!tables.is_empty()).then_some(Self(tables))
    }

    /// The text of the state, as `larder.row_security()` returns it.
    pub(crate) fn state(&self) -> String {
        let states: Vec<&str> = self.0.values().map(|table| table.state.as_str()).collect();
        states.join(", ")
    }
}

/// A `where` clause that is true if larder's role sees what `row_security` says. If it does not, PostgreSQL refuses the
/// statement, which leads to `SourceError::RowSecurity`. Empty without `row_security`. The clause must follow all
/// tables of the statement, and be its only condition.
pub(crate) fn unchanged_sql(row_security: Option<&RowSecurity>) -> String {
    let Some(row_security) = row_security else {
        return String::new();
    };
    let tables = row_security.0.values();
    let conditions: Vec<&str> = tables
        .flat_map(|table| table.conditions.iter().map(String::as_str))
        .collect();
    // `current_user` keeps PostgreSQL from casting a constant, and failing, when it plans the statement. Its text must not
    // become a part of the value, in which numbers are read as oids.
    format!(
        " where '{{\"{state}\"}}'::larder.row_security_state[] is not null and case when {conditions} then true \
         else ('changed' || left(current_user, 0))::larder.row_security_state is not null end",
        state = row_security.state(),
        conditions = conditions.join(" and "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_apply_are_those_of_the_state() {
        let subject = TableRowSecurity::new(16388, "16388 on 16393 16395".into());
        assert!(subject.is_active());
        for (policy, applies) in [(16388, false), (16393, true), (1639, false), (16395, true)] {
            assert_eq!(subject.applies(policy), applies, "{policy}");
        }
        let without = TableRowSecurity::new(16388, "16388 on".into());
        assert!(without.is_active() && !without.applies(16388));
        let mut of_roles = TableRowSecurity::new(16388, "16388 on 16393".into());
        of_roles.add_policy(16393, &[0]);
        of_roles.add_policy(16394, &[7, 8]);
        assert_eq!(
            of_roles.conditions,
            [
                "row_security_active(16388::oid) = true",
                "(pg_has_role(7::oid, 'usage') or pg_has_role(8::oid, 'usage')) = false"
            ]
        );
        let bypassing = TableRowSecurity::new(16388, "16388 off".into());
        assert!(!bypassing.is_active() && !bypassing.applies(16393));
    }
}
